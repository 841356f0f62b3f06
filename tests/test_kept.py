"""What is kept of answers, which part of a picture a network sees, and the maps of the likeliest classes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from models.model import Preparation
from models.sources.torchvision_dense import preparation_of
from models.transforms import measured
from ui import examples
from ui.engine import engine, network_calls, runs
from ui.engine.messages import Answer, Refining, Settings
from ui.engine.model_cache import load
from ui.engine.request import Request
from ui.maps import kept, top
from ui.maps.packing import SIDE, top_maps
from ui.maps.top import TopMaps

MODEL = "efficientnet_lite0"
DOG, CUP = list(examples.all_examples().values())[:2]


@pytest.fixture(autouse=True)
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is loaded at once, and nothing is kept of other tests."""
    monkeypatch.setattr(engine.model_cache, "wait", lambda run, model: iter(()))
    monkeypatch.setattr(kept, "_kept", type(kept._kept)())
    load(MODEL)


def key(**asked: Any) -> str:
    request = Request(**{"picture": str(DOG.path), "model": MODEL, **asked})
    return kept.key(engine.resolve(request), request)


def test_a_question_is_known_by_what_its_answer_depends_on(tmp_path: Path) -> None:
    copy = str(shutil.copy(DOG.path, tmp_path / "holiday.jpg"))

    assert key() == key(picture=copy) == key(options={"relu": True}), "by content, and with defaults named or not"
    assert key(method="saliency", layer="stages.2") == key(method="saliency"), "a method without a layer"
    others = [key(picture=str(CUP.path)), key(layer="stages.4"), key(target="goldfish"), key(method="hires_cam")]
    others += [key(options={"relu": False}), key(bands="3,2,1"), key(plane=2)]
    assert len({key(), *others}) == 8
    assert key(plane=2).startswith(key() + "/"), "the planes of one answer"
    assert key(picture=None) == "" and "holiday" not in key(picture=copy)


def ask(request: Request, after: Callable[[Any], None] = lambda step: None) -> list[Any]:
    """The steps of an answer."""
    steps = []
    with runs.begin(None) as run:
        for step in engine.explain(request, run, stages=False):
            steps.append(step)
            if isinstance(step, Refining) and step.map is not None:
                after(run)
    return steps


LONG = Request(str(DOG.path), MODEL, method="smooth_grad", options={"samples": 6, "batch_size": 2}, kept=True)


def test_a_long_method_is_computed_once_for_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another visitor with the same picture shares it; Explain and programs compute it anew."""
    calls = []
    explain = network_calls.explain
    monkeypatch.setattr(network_calls, "explain", lambda *a, **k: calls.append(a[1]) or explain(*a, **k))
    first = ask(LONG)[-1]

    again = ask(replace(LONG, layer="stages.4"))

    assert calls == ["smooth_grad"] and not any(isinstance(step, Refining) for step in again)
    assert isinstance(again[-1], Answer) and torch.equal(again[-1].map, first.map)
    assert torch.equal(again[-1].probabilities, first.probabilities) and again[-1].share == 1.0
    assert again[-1].settings.layer == "stages.4", "the settings are those of the new request"
    ask(replace(LONG, kept=False))
    ask(replace(LONG, target="goldfish"))
    assert len(calls) == 3


def test_a_stopped_run_is_not_kept() -> None:
    stopped = ask(replace(LONG, options={"samples": 200}), after=lambda run: run.stop())[-1]

    assert isinstance(stopped, Answer) and stopped.share < 1 and not kept._kept


def test_what_is_kept_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = ask(LONG)[-1].explanation
    size = kept._bytes(explanation)
    monkeypatch.setattr(kept, "BYTES", 3 * size)
    settings = [replace(engine.resolve(LONG), key=str(number)) for number in range(5)]

    for each in settings:
        kept.put(each, explanation)
        kept.find(settings[0])

    assert [kept.find(each) is not None for each in settings] == [True, False, False, True, True], "the oldest went"
    monkeypatch.setattr(kept, "LARGEST", size - 1)
    kept.put(replace(settings[0], key="large"), explanation)
    assert kept.find(replace(settings[0], key="large")) is None


def padded(photo: Image.Image) -> torch.Tensor:
    """A package's own preprocessing: the whole width at 64 pixels, the middle square of it."""
    from torchvision.transforms import functional as F

    return F.to_tensor(F.center_crop(F.resize(photo, [64]), [48, 48]))


PREPARATIONS = {
    "crop": Preparation(48, 64, (0.5,) * 3, (0.5,) * 3),
    "oblong": Preparation((32, 48), 64, (0.5,) * 3, (0.5,) * 3),
    "stretched": Preparation(48, (48, 48), (0.5,) * 3, (0.5,) * 3),
    "margin": Preparation(64, 48, (0.5,) * 3, (0.5,) * 3),
    "package": measured(padded, 3),
    "detector": preparation_of("ssd300_vgg16"),
}
WHOLE = {"stretched", "detector"}


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (240, 240), (1000, 100)])
@pytest.mark.parametrize("name", PREPARATIONS)
def test_the_window_is_where_the_crop_comes_from(name: str, size: tuple[int, int]) -> None:
    """Oracle: the grey values of a ramp, along the crop that is drawn over; 1000 x 100 loses its ends first."""
    preparation, (width, height) = PREPARATIONS[name], size
    left, top, right, bottom = preparation.window(width, height)

    for axis, (low, high), length in ((1, (left, right), width), (0, (top, bottom), height)):
        ramp = (torch.arange(length) + 0.5) / length
        grey = (255 * (ramp if axis else ramp[:, None]).expand(height, width)).round().byte()
        seen = preparation.crop(Image.fromarray(grey.numpy()).convert("RGB")).convert("L")
        line = torch.tensor(list(seen.tobytes())).view(seen.height, seen.width).double()
        line = line[seen.height // 2] if axis else line[:, seen.width // 2]
        at = low + (torch.arange(len(line)) + 0.5) / len(line) * (high - low)
        inside = (at > 0.02) & (at < 0.98)
        assert float((line[inside] / 255 - at[inside]).abs().max()) < 0.02
    if name in WHOLE and max(size) <= 4 * min(size):
        assert (left, top, right, bottom) == pytest.approx((0, 0, 1, 1))


def test_an_answer_says_which_part_of_the_picture_it_is_about() -> None:
    answer = ask(Request(str(CUP.path), MODEL))[-1]

    assert answer.settings.window is not None
    left, top, right, bottom = answer.settings.window.box
    assert 0 < left < right < 1 and 0 < top < bottom < 1
    wide, high = (right - left) * answer.settings.window.aspect, bottom - top
    assert wide / high == pytest.approx(answer.seen.width / answer.seen.height, rel=0.01)


def small(request: Request, name: str, classes: list[int], key: str | None = None) -> list[TopMaps]:
    settings = engine.resolve(request)
    with runs.begin(None) as run:
        steps = top.explain(request, run, kept.key(settings, request) if key is None else key, name, classes)
        return [step for step in steps if isinstance(step, TopMaps)]


def test_small_maps_are_those_of_the_method_that_is_shown() -> None:
    """Oracle: the same question asked of the class itself. A slow method's place is taken by Grad-CAM."""
    request = Request(str(DOG.path), MODEL, method="hires_cam", layer="stages.4", options={"relu": False})
    names = load(MODEL).names

    steps = small(request, "hires_cam", [235, 225, 227, 1])

    assert [list(step.maps) for step in steps] == [[235], [235, 225], [235, 225, 227]], "one at a time, three at most"
    asked = ask(replace(request, target=names[225]))[-1]
    torch.testing.assert_close(steps[-1].maps[225], asked.map)
    slow = engine.resolve(LONG)
    assert top.method_of(slow).name == "grad_cam" and not small(LONG, "smooth_grad", [1])
    assert top.method_of(engine.resolve(request), top.QUICK).name == "grad_cam", "measured slow"
    assert not small(request, "hires_cam", [235], key="another question")


def test_small_maps_are_sent_small() -> None:
    settings: Settings = engine.resolve(Request(str(DOG.path), MODEL, method="input_x_gradient"))
    step = TopMaps(settings, Image.new("RGB", (300, 200)), settings.method, {3: -torch.ones(300, 200)})

    packed = top_maps(step, of=7, ident=8)

    assert packed["of"] == 7 and packed["items"][0]["index"] == 3
    plane = packed["items"][0]["map"]
    assert max(plane["h"], plane["w"]) == SIDE and plane["lo"] == plane["hi"] == 1.0, "magnitudes, or they would cancel"
