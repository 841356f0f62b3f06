"""The result cache, the window of a network in an image, and the maps of the most likely classes."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from saliscope import limits
from saliscope.images import examples
from saliscope.page.components.view import SMALL_SIDE
from saliscope.page.maps.view import top_maps
from saliscope.session import engine, model_cache, network_calls, results_cache
from saliscope.session.answers import Answer, Refining, Settings
from saliscope.session.jobs import runs
from saliscope.session.maps import top
from saliscope.session.maps.top import TopMaps
from saliscope.session.model_cache import load
from saliscope.session.request import Request
from saliscope.zoo.model import Preparation
from saliscope.zoo.sources.torchvision_dense import preparation_of
from saliscope.zoo.transforms import measure
from tests.saliscope.session.asking import MODEL

DOG, CUP = list(examples.all_examples().values())[:2]


@pytest.fixture(autouse=True)
def empty(loaded: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in the cache."""
    monkeypatch.setattr(results_cache, "_cache", type(results_cache._cache)())


def key(**settings: Any) -> str:
    request = Request(**{"image": str(DOG.path), "model": MODEL, **settings})
    return results_cache.key(engine.resolve(request), request)


def test_the_key_depends_on_everything_that_changes_the_result(tmp_path: Path) -> None:
    copy = str(shutil.copy(DOG.path, tmp_path / "holiday.jpg"))

    assert key() == key(image=copy) == key(options={"relu": True}), "by content, and with explicit defaults"
    assert key(method="saliency", layer="stages.2") == key(method="saliency"), "a method without a layer"
    others = [key(image=str(CUP.path)), key(layer="stages.4"), key(target="goldfish"), key(method="hires_cam")]
    others += [key(options={"relu": False}), key(bands="3,2,1"), key(plane=2)]
    assert len({key(), *others}) == 8
    assert key(plane=2).startswith(key() + "/"), "the planes of one answer"
    assert key(image=None) == "" and "holiday" not in key(image=copy)


def ask(request: Request, after: Callable[[Any], None] = lambda step: None) -> list[Any]:
    """Return the steps of an answer."""
    steps = []
    with runs.start(None) as run:
        for step in engine.explain(request, run, stages=False):
            steps.append(step)
            if isinstance(step, Refining) and step.map is not None:
                after(run)
    return steps


LONG = Request(str(DOG.path), MODEL, method="smooth_grad", options={"samples": 6, "batch_size": 2}, use_cache=True)


def test_a_long_method_is_computed_once_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users with the same image share the result; the Explain button and the API recompute it."""
    calls = []
    explain = network_calls.explain
    monkeypatch.setattr(network_calls, "explain", lambda *a, **k: calls.append(a[1]) or explain(*a, **k))
    first = ask(LONG)[-1]

    again = ask(replace(LONG, layer="stages.4"))

    assert calls == ["smooth_grad"] and not any(isinstance(step, Refining) for step in again)
    assert isinstance(again[-1], Answer) and torch.equal(again[-1].map, first.map)
    assert torch.equal(again[-1].probabilities, first.probabilities) and again[-1].share == 1.0
    assert again[-1].settings.layer == "stages.4", "the settings are those of the new request"
    ask(replace(LONG, use_cache=False))
    ask(replace(LONG, target="goldfish"))
    assert len(calls) == 3


def test_a_stopped_run_is_not_cached() -> None:
    stopped = ask(replace(LONG, options={"samples": 200}), after=lambda run: run.stop())[-1]

    assert isinstance(stopped, Answer) and stopped.share < 1 and not results_cache._cache


def test_the_cache_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = ask(LONG)[-1].explanation
    size = results_cache._bytes(explanation)
    monkeypatch.setattr(results_cache, "BYTES", 3 * size)
    settings = [replace(engine.resolve(LONG), key=str(number)) for number in range(5)]

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


@pytest.mark.parametrize("name", PREPARATIONS)
def test_the_window_is_the_position_of_the_crop(name: str) -> None:
    """Oracle: the gray values of a ramp along the crop; 1000 x 100 is first limited in its aspect ratio."""
    preparation = PREPARATIONS[name]
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
            assert float((line[inside] / 255 - at[inside]).abs().max()) < 0.02, (width, height)
        if name in WHOLE and width <= 4 * height:
            assert (left, top, right, bottom) == pytest.approx((0, 0, 1, 1))


def test_an_answer_has_the_window_of_its_crop() -> None:
    answer = ask(Request(str(CUP.path), MODEL))[-1]

    assert answer.settings.window is not None
    left, top, right, bottom = answer.settings.window.box
    assert 0 < left < right < 1 and 0 < top < bottom < 1
    wide, high = (right - left) * answer.settings.window.aspect, bottom - top
    assert wide / high == pytest.approx(answer.crop.width / answer.crop.height, rel=0.01)


def small(request: Request, name: str, classes: list[int], key: str | None = None) -> list[TopMaps]:
    settings = engine.resolve(request)
    with runs.start(None) as run:
        steps = top.explain(request, run, results_cache.key(settings, request) if key is None else key, name, classes)
        return [step for step in steps if isinstance(step, TopMaps)]


def test_small_maps_use_the_current_method() -> None:
    """Oracle: the same request for the class. Slow methods are replaced by Grad-CAM."""
    request = Request(str(DOG.path), MODEL, method="hires_cam", layer="stages.4", options={"relu": False})
    names = load(MODEL).names

    steps = small(request, "hires_cam", [235, 225, 227, 1])

    assert [list(step.maps) for step in steps] == [[235], [235, 225], [235, 225, 227]], "one at a time, at most three"
    expected = ask(replace(request, target=names[225]))[-1]
    torch.testing.assert_close(steps[-1].maps[225], expected.map)
    slow = engine.resolve(LONG)
    assert top.method_of(slow).name == "grad_cam" and not small(LONG, "smooth_grad", [1])
    assert top.method_of(engine.resolve(request), top.QUICK).name == "grad_cam", "measured slow"
    assert not small(request, "hires_cam", [235], key="another key")


def test_small_maps_are_downsampled() -> None:
    """Magnitudes of gradients, and other attributions with their sign."""
    for method, value in (("saliency", 1.0), ("input_x_gradient", -1.0)):
        settings: Settings = engine.resolve(Request(str(DOG.path), MODEL, method=method))
        step = TopMaps(settings, Image.new("RGB", (300, 200)), settings.method, {3: -torch.ones(300, 200)})
        packed = top_maps(step, of=7, ident=8)
        plane = packed["items"][0]["map"]
        assert packed["of"] == 7 and packed["items"][0]["index"] == 3
        assert max(plane["h"], plane["w"]) == SMALL_SIDE
        assert plane["lo"] == plane["hi"] == value


def test_large_networks_are_forgotten_earlier(monkeypatch: Any) -> None:
    """The default network, which is the first, and the latest one stay."""
    network = torch.nn.Linear(1000, 1000)
    loaded = SimpleNamespace(model=SimpleNamespace(network=network))
    for limit, kept in ((20_000_000, "abcd"), (9_000_000, "ad"), (1, "ad")):
        monkeypatch.setattr(model_cache, "_loaded", OrderedDict.fromkeys("abcd", loaded))
        monkeypatch.setattr(limits, "NETWORKS", limit)
        model_cache._forget_old()
        assert "".join(model_cache._loaded) == kept, limit
