"""Requests from the form, a link and the API, their cost, the cache of results, and a network without layers."""

from __future__ import annotations

import ast
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import explainers
from explainers.call.scores import Scoring
from saliscope import limits, zoo
from saliscope.compute import engine, messages, model_cache, network_calls, results_cache
from saliscope.compute.answers import Answer, Refining, Stages
from saliscope.compute.bundles import links
from saliscope.compute.channels import engine as channels
from saliscope.compute.interventions import changes
from saliscope.compute.interventions.engine import intervene
from saliscope.compute.jobs import runs
from saliscope.compute.maps import top
from saliscope.compute.maps.top import TopMaps
from saliscope.compute.model_cache import load
from saliscope.compute.request import NAMES, Request, from_api, from_form
from saliscope.errors import Refused
from saliscope.page.api import snippets
from saliscope.page.components.view import SMALL_SIDE
from saliscope.page.maps.maps import top_maps
from tests.saliscope.compute.asking import CAT, DOG, MODEL, SMALL, answered, inputs, last_steps, steps_of
from tests.support.catalog import isolate_catalog

SETTINGS = {"model": MODEL, "layer": "stages.4", "target": "goldfish", "method": "layer_cam"}

pytestmark = pytest.mark.usefixtures("loaded")


def test_form_link_and_api_make_the_same_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    uploaded, options = str(shutil.copy(DOG, tmp_path / "holiday.jpg")), {"relu": False}
    uploaded_settings = {**SETTINGS, "bands": "3,2,1"}
    form = from_form({"image": uploaded, **uploaded_settings, "options": {"model": MODEL, "values": options}})
    program = from_api({"path": uploaded}, json.dumps(options), **uploaded_settings)
    query = {links.PARAMETERS[name]: value for name, value in SETTINGS.items()} | {"options": json.dumps(options)}
    link, example, notes = links.read(query)
    assert replace(form, use_cache=False) == program == Request(uploaded, **uploaded_settings, options=options)
    assert (link.image, str(example.path), notes) == (DOG, DOG, [])
    assert from_api({"path": uploaded}, options, **uploaded_settings) == program
    assert {name: getattr(link, name) for name in NAMES} == SETTINGS and link.options == options

    for model, other, notes in ((MODEL, "resnet50", 0), ("", "resnet50", 0), (MODEL, MODEL, 1), ("", MODEL, 1)):
        moved = from_form({"image": uploaded, "model": model, "layer": "layer4", "options": {"model": other}})
        assert len(engine.resolve(moved).notes) == notes, "the layer may be that of the previous model"
    assert from_form({"image": "example:dog"}).image == DOG and from_form({}).image is None
    for path in ("/etc/passwd", "https://example.org/a.png", "example:../../app.py"):
        for read, given in ((from_form, {"image": path}), (from_api, {"path": path})):
            with pytest.raises(Refused):
                read(given)


def test_a_long_method_keeps_within_the_memory_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the shapes of the layers, times four bytes."""
    loaded, images, values = load(MODEL), torch.zeros(1, 3, 224, 224), Scoring.values
    layers = explainers.list_layers(loaded.model.network, images, spatial=True)
    row = 4 * sum(torch.Size(layer.shape).numel() for layer in layers)
    # Without the limit, the library uses more than three rows on any machine.
    monkeypatch.setattr("explainers.call.batch_size.SECONDS", 1e9)
    monkeypatch.setattr("explainers.call.batch_size.reused_bytes", 2**32)
    for memory, most in ((3 * row + 1, 3), (1, 1)):
        monkeypatch.setattr(limits, "MEMORY", memory)
        batches: list[int] = []
        monkeypatch.setattr(Scoring, "values", lambda self, x, of, to=batches: to.append(len(x)) or values(self, x, of))
        network_calls.explain(MODEL, "occlusion", images, lambda step: True, window=112, stride=112, target=1)
        assert max(batches) == most, "three rows, and at least one"


def test_snippets_call_with_the_settings_on_the_page() -> None:
    """For a class with an apostrophe in its name; the shell snippet runs in the tests of the endpoints."""
    names = {**SETTINGS, "target": "jack-o'-lantern"}
    settings = engine.resolve(Request(**names, options={"relu": False}))
    python, library, _ = (item["code"] for item in snippets.snippets(settings)["items"])
    calls = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call)]
    (predict,) = [call for call in calls if isinstance(call.func, ast.Attribute)]
    given = {word.arg: word.value for word in predict.keywords if word.arg not in ("image", "api_name")}
    assert {name: ast.literal_eval(value) for name, value in given.items()} == {**names, "options": {"relu": False}}
    assert f"target={settings.target}, relu=False)" in library and ast.parse(library)


def test_the_page_says_what_a_visitor_can_do_about_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """No names of functions, commands or variables: a visitor can only choose another model."""
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    for name, start, end in (
        ("resnet152?size=96", "ResNet-152 is not on this server", "EfficientNet-Lite0"),
        ("resnet5000", "Unknown model 'resnet5000'. ", "Choose one from the list of models."),
    ):
        with pytest.raises(Refused) as refused:
            engine.resolve(Request(model=name))
        text = str(refused.value)
        assert text.startswith(start) and end in text, text
        assert not any(word in text for word in ("SALISCOPE", "`", "()", "cache", "efficientnet_lite0")), text


def test_the_frame_of_an_animation_and_the_background_are_stated(tmp_path: Path) -> None:
    """Only where they matter: a single frame and an opaque alpha channel need no note."""
    plain, clear, blue = (Image.new("RGBA", (64, 64), color) for color in ("red", (0, 0, 0, 0), "blue"))
    moves, white = "animation. Its first frame", "filled with white"
    for name, frames, expected in (
        ("still.gif", [plain], []),
        ("moving.webp", [plain, blue], [moves]),
        ("moving.png", [clear, plain], [moves, white]),
        ("opaque.png", [plain], []),
    ):
        frames[0].save(tmp_path / name, save_all=len(frames) > 1, append_images=frames[1:])
        request = Request(str(tmp_path / name), model=MODEL)
        settings, image, _ = engine.load_input(engine.resolve(request), request)
        assert len(settings.notes) == len(expected), (name, settings.notes)
        assert all(part in note for part, note in zip(expected, settings.notes, strict=True)), (name, settings.notes)
        assert white not in expected or image.getpixel((5, 5)) == (255, 255, 255)


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 5))


def test_the_default_is_integrated_gradients_and_methods_that_need_a_layer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the map of the library."""
    isolate_catalog(monkeypatch, tmp_path)
    linear = zoo.add(f"{__name__}:build", size=32, mean=[0.5] * 3, std=[0.5] * 3)
    loaded = model_cache.load(linear)
    assert loaded.layers == [] and not loaded.default
    steps = last_steps(Request(DOG, model=linear))
    answer = steps[Answer]
    assert answer.settings.method.name == "integrated_gradients" and not answer.settings.notes
    options = {"target": answer.target, "steps": answer.options["steps"]}
    expected = explainers.explain("integrated_gradients", *inputs(DOG, linear), **options).map[0]
    torch.testing.assert_close(answer.map, expected, rtol=1e-3, atol=1e-5)
    assert Stages not in steps or not steps[Stages].maps

    listed = {method.name for method in model_cache.list_methods(loaded)}
    assert {"saliency", "rise"} <= listed and not {"grad_cam", "le_grad"} & listed
    (note,) = answered(Request(DOG, model=linear, method="grad_cam")).settings.notes
    assert note.startswith("Grad-CAM does not support this network: No layer of this network has cells")
    assert "Integrated gradients" in note
    for function, values in ((channels.sheet, ()), (intervene, (changes.parse({"kind": "zeros", "channels": "3"}),))):
        with pytest.raises(Refused, match="No layer"):
            steps_of(function, Request(DOG, model=linear), *values)


def key(**settings: Any) -> str:
    request = Request(**{"image": DOG, "model": MODEL, **settings})
    return results_cache.key(engine.resolve(request), request)


def test_the_key_depends_on_everything_that_changes_the_result(tmp_path: Path) -> None:
    copy = str(shutil.copy(DOG, tmp_path / "holiday.jpg"))
    assert key() == key(image=copy) == key(options={"relu": True}), "by content, and with explicit defaults"
    assert key(method="saliency", layer="stages.2") == key(method="saliency"), "a method without a layer"
    choices = explainers.METHODS["occlusion"].options["precision"].choices  # with "auto" where bf16 may be faster
    automatic = {"precision": "auto"} if "auto" in choices else {}
    assert engine.resolve(Request(DOG, MODEL, method="occlusion")).options == automatic
    others = [key(image=CAT), key(layer="stages.4"), key(target="goldfish"), key(method="hires_cam")]
    others += [key(options={"relu": False}), key(bands="3,2,1"), key(plane=2)]
    assert len({key(), *others}) == 8 and key(image=None) == ""
    assert key(plane=2).startswith(key() + "/"), "the planes of one answer"


@pytest.fixture
def long(new_dog: str) -> Request:
    """A request by a long method."""
    options = {"samples": 6, "batch_size": 2}
    return Request(new_dog, SMALL, method="smooth_grad", options=options, use_cache=True)


def test_the_status_of_a_long_method_says_when_it_ends() -> None:
    settings = SimpleNamespace(method=SimpleNamespace(title="RISE"))
    for fraction, seconds, left, end in (
        (0.25, 10.0, 10.0, "25%, 10 s, stops at about 50% in 10 s because of the time limit"),
        (0.25, 10.0, 60.0, "25%, 10 s, about 30 s left"),
        (0.01, 10.0, 60.0, "1%, 10 s"),
    ):
        step: Any = SimpleNamespace(settings=settings, fraction=fraction, seconds=seconds, left=left)
        assert messages.refining(step, 1)["parts"] == [{"text": f"RISE: {end}"}]


def test_a_long_method_is_computed_once_per_request(long: Request) -> None:
    """Users with the same image share the result; the Explain button and the API recompute it."""
    first, again = last_steps(long), last_steps(replace(long, layer="stages.4"))
    assert Refining in first and Refining not in again
    assert torch.equal(again[Answer].map, first[Answer].map) and again[Answer].share == 1.0
    assert torch.equal(again[Answer].probabilities, first[Answer].probabilities)
    assert again[Answer].settings.layer == "stages.4", "the settings are those of the new request"
    for other in (replace(long, use_cache=False), replace(long, target="goldfish")):
        assert Refining in last_steps(other)


def test_a_part_of_a_map_is_not_kept(long: Request) -> None:
    with runs.start(None) as run:
        for step in engine.explain(replace(long, options={"samples": 200, "batch_size": 2}), run, stages=False):
            if isinstance(step, Refining) and step.map is not None:
                run.stop()
    assert isinstance(step, Answer) and step.share < 1 and results_cache.find(step.settings) is None


def test_the_cache_has_a_size_limit(long: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = answered(long).explanation
    size = sum(each.nbytes for each in (explanation.map, explanation.raw, explanation.scores))
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
        (item,) = top_maps(step, of=7, ident=8)["items"]
        plane = item["map"]
        assert max(plane["h"], plane["w"]) == SMALL_SIDE and plane["lo"] == plane["hi"] == value


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


one = two = three = net


@pytest.mark.filterwarnings("ignore:.*preprocessing")
def test_large_networks_are_forgotten_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default network, which is the first, and the latest one stay."""
    isolate_catalog(monkeypatch, tmp_path)
    other, *names = (zoo.add(f"{__name__}:{name}", size=32) for name in ("net", "one", "two", "three"))
    loaded = (model_cache.load(name).model.network for name in (model_cache.first_model(), names[0]))
    first, own = (sum(each.nbytes for each in network.parameters()) for network in loaded)
    for count, limit in ((3, first + 3 * own), (2, first + 3 * own - 1), (1, first + own), (1, 1)):
        for most, loaded in ((1, [other]), (limit, names)):
            monkeypatch.setattr(limits, "NETWORKS", most)
            for name in loaded:
                model_cache.load(name)
        assert [name for name in names if model_cache.has(name)] == names[-count:], count
        assert model_cache.has(model_cache.first_model())
