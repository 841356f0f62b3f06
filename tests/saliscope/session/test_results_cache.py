"""The result cache, the window of a network in an image, and the maps of the most likely classes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from saliscope import limits, zoo
from saliscope.page.components.view import SMALL_SIDE
from saliscope.page.maps.view import top_maps
from saliscope.session import engine, model_cache, results_cache
from saliscope.session.answers import Answer, Refining
from saliscope.session.jobs import runs
from saliscope.session.maps import top
from saliscope.session.maps.top import TopMaps
from saliscope.session.request import Request
from saliscope.zoo.model import Preparation
from saliscope.zoo.sources.torchvision_dense import preparation_of
from saliscope.zoo.transforms import measure
from tests.saliscope.session.asking import CAT, DOG, MODEL, answered, steps_of
from tests.support.catalog import isolate_catalog

pytestmark = pytest.mark.usefixtures("loaded")


def key(**settings: Any) -> str:
    request = Request(**{"image": DOG, "model": MODEL, **settings})
    return results_cache.key(engine.resolve(request), request)


def test_the_key_depends_on_everything_that_changes_the_result(tmp_path: Path) -> None:
    copy = str(shutil.copy(DOG, tmp_path / "holiday.jpg"))
    assert key() == key(image=copy) == key(options={"relu": True}), "by content, and with explicit defaults"
    assert key(method="saliency", layer="stages.2") == key(method="saliency"), "a method without a layer"
    others = [key(image=CAT), key(layer="stages.4"), key(target="goldfish"), key(method="hires_cam")]
    others += [key(options={"relu": False}), key(bands="3,2,1"), key(plane=2)]
    assert len({key(), *others}) == 8
    assert key(plane=2).startswith(key() + "/"), "the planes of one answer"
    assert key(image=None) == "" and "holiday" not in key(image=copy)


@pytest.fixture
def long(new_dog: str) -> Request:
    """A request by a long method."""
    options = {"samples": 6, "batch_size": 2}
    return Request(new_dog, MODEL, method="smooth_grad", options=options, use_cache=True)


def ask(request: Request) -> list[Any]:
    return steps_of(engine.explain, request, stages=False)


def test_a_long_method_is_computed_once_per_request(long: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users with the same image share the result; the Explain button and the API recompute it. A part is not kept."""
    with runs.start(None) as run:
        for step in engine.explain(long, run, stages=False):  # type: ignore[arg-type]
            if isinstance(step, Refining) and step.map is not None:
                run.stop()  # type: ignore[union-attr]
    assert isinstance(step, Answer) and step.share < 1
    first = ask(long)
    assert any(isinstance(step, Refining) for step in first)
    again = ask(replace(long, layer="stages.4"))
    assert not any(isinstance(step, Refining) for step in again)
    assert torch.equal(again[-1].map, first[-1].map) and again[-1].share == 1.0
    assert torch.equal(again[-1].probabilities, first[-1].probabilities)
    assert again[-1].settings.layer == "stages.4", "the settings are those of the new request"
    for other in (replace(long, use_cache=False), replace(long, target="goldfish")):
        assert any(isinstance(step, Refining) for step in ask(other))


def test_the_cache_has_a_size_limit(long: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = answered(long).explanation
    tensors = (explanation.map, explanation.raw, explanation.scores)
    size = sum(each.numel() * each.element_size() for each in tensors if each is not None)
    monkeypatch.setattr(results_cache, "BYTES", 3 * size)
    settings = [replace(engine.resolve(long), key=f"limit {number}") for number in range(5)]
    for each in settings:
        results_cache.put(each, explanation)
        results_cache.find(settings[0])
    cached = [results_cache.find(each) is not None for each in settings]
    assert cached == [True, False, False, True, True], "the least recently used are removed"
    monkeypatch.setattr(results_cache, "LARGEST", size - 1)
    results_cache.put(replace(settings[0], key="large"), explanation)
    assert results_cache.find(replace(settings[0], key="large")) is None


def padded(image: Image.Image) -> torch.Tensor:
    """A custom preprocessing: resize the shorter side to 64 pixels and crop the center."""
    from torchvision.transforms import functional as F

    return F.to_tensor(F.center_crop(F.resize(image, [64]), [48, 48]))


PREPARATIONS = {
    "crop": Preparation(48, 64, (0.5,) * 3, (0.5,) * 3),
    "oblong": Preparation((32, 48), 64, (0.5,) * 3, (0.5,) * 3),
    "stretched": Preparation(48, (48, 48), (0.5,) * 3, (0.5,) * 3),
    "margin": Preparation(64, 48, (0.5,) * 3, (0.5,) * 3),
    "package": measure(padded, 3),
    "detector": preparation_of("ssd300_vgg16"),
}
WHOLE = {"stretched", "detector"}


def test_the_window_is_the_position_of_the_crop() -> None:
    """Oracle: the gray values of a ramp along the crop; 1000 x 100 is first limited in its aspect ratio."""
    for name, preparation in PREPARATIONS.items():
        for width, height in ((300, 200), (200, 300), (240, 240), (1000, 100)):
            left, top, right, bottom = preparation.window(width, height)
            for axis, (low, high), length in ((1, (left, right), width), (0, (top, bottom), height)):
                ramp = (torch.arange(length) + 0.5) / length
                gray = (255 * (ramp if axis else ramp[:, None]).expand(height, width)).round().byte()
                seen = preparation.crop(Image.fromarray(gray.numpy()).convert("RGB")).convert("L")
                line = torch.tensor(list(seen.tobytes())).view(seen.height, seen.width).double()
                line = line[seen.height // 2] if axis else line[:, seen.width // 2]
                at = low + (torch.arange(len(line)) + 0.5) / len(line) * (high - low)
                inside = (at > 0.02) & (at < 0.98)
                assert float((line[inside] / 255 - at[inside]).abs().max()) < 0.02, (name, width, height)
            if name in WHOLE and width <= 4 * height:
                assert (left, top, right, bottom) == pytest.approx((0, 0, 1, 1))
    answer = answered(Request(CAT, MODEL))
    left, top, right, bottom = answer.settings.window.box
    assert 0 < left < right < 1 and 0 < top < bottom < 1
    wide, high = (right - left) * answer.settings.window.aspect, bottom - top
    assert wide / high == pytest.approx(answer.crop.width / answer.crop.height, rel=0.01)


def small(request: Request, name: str, classes: list[int], key: str | None = None) -> list[TopMaps]:
    own = results_cache.key(engine.resolve(request), request)
    steps = steps_of(top.explain, request, key=own if key is None else key, name=name, classes=classes)
    return [step for step in steps if isinstance(step, TopMaps)]


def test_small_maps_use_the_current_method(long: Request) -> None:
    """Oracle: the same request for the class. Slow methods are replaced by Grad-CAM."""
    request = Request(DOG, MODEL, method="hires_cam", layer="stages.4", options={"relu": False})
    steps = small(request, "hires_cam", [235, 225, 227, 1])
    assert [list(step.maps) for step in steps] == [[235], [235, 225], [235, 225, 227]], "one at a time, at most three"
    expected = answered(replace(request, target=model_cache.load(MODEL).names[225]))
    torch.testing.assert_close(steps[-1].maps[225], expected.map)
    assert top.method_of(engine.resolve(long)).name == "grad_cam" and not small(long, "smooth_grad", [1])
    assert top.method_of(engine.resolve(request), top.QUICK).name == "grad_cam", "measured slow"
    assert not small(request, "hires_cam", [235], key="another key")

    # Downsampled: magnitudes of gradients, and other attributions with their sign.
    for method, value in (("saliency", 1.0), ("input_x_gradient", -1.0)):
        settings = engine.resolve(Request(DOG, MODEL, method=method))
        step = TopMaps(settings, Image.new("RGB", (300, 200)), settings.method, {3: -torch.ones(300, 200)})
        packed = top_maps(step, of=7, ident=8)
        assert (packed["of"], packed["items"][0]["index"]) == (7, 3)
        plane = packed["items"][0]["map"]
        assert max(plane["h"], plane["w"]) == SMALL_SIDE and plane["lo"] == plane["hi"] == value


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


one = two = three = net


def size_of(name: str) -> int:
    """Return the bytes of the weights of a network."""
    return sum(each.numel() * each.element_size() for each in model_cache.load(name).model.network.parameters())


@pytest.mark.filterwarnings("ignore:.*preprocessing")
def test_large_networks_are_forgotten_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default network, which is the first, and the latest one stay."""
    isolate_catalog(monkeypatch, tmp_path)
    other, *names = (zoo.add(f"{__name__}:{name}", size=32) for name in ("net", "one", "two", "three"))
    first, own = size_of(model_cache.first_model()), size_of(names[0])
    for count, limit in ((3, first + 3 * own), (2, first + 3 * own - 1), (1, first + own), (1, 1)):
        for most, loaded in ((1, [other]), (limit, names)):
            monkeypatch.setattr(limits, "NETWORKS", most)
            for name in loaded:
                model_cache.load(name)
        assert [name for name in names if model_cache.has(name)] == names[-count:], count
        assert model_cache.has(model_cache.first_model())
