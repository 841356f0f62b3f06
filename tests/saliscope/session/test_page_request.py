"""Requests from the form, a link and the API, and the cost of answering them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import explainers
from explainers.passes.scoring import Scoring
from saliscope import limits
from saliscope.errors import Refused
from saliscope.page.api import tab
from saliscope.page.serving import endpoints
from saliscope.session import engine, network_calls
from saliscope.session.answers import Answer, Stages
from saliscope.session.bundles import links
from saliscope.session.model_cache import load
from saliscope.session.request import NAMES, Request, from_api, from_form, split
from tests.saliscope.session.asking import DOG, MODEL, steps_of

SETTINGS = {"model": MODEL, "layer": "stages.4", "target": "goldfish", "method": "layer_cam"}

pytestmark = pytest.mark.usefixtures("loaded")


def test_form_link_and_api_make_the_same_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    uploaded, options = str(shutil.copy(DOG, tmp_path / "holiday.jpg")), {"relu": False}
    form = from_form(uploaded, *SETTINGS.values(), {"model": MODEL, "values": options})
    program = from_api({"path": uploaded}, json.dumps(options), **SETTINGS)
    query = {links.PARAMETERS[name]: value for name, value in SETTINGS.items()} | {"options": json.dumps(options)}
    link, example, notes = links.read(query)
    assert replace(form, use_cache=False) == program == Request(uploaded, **SETTINGS, options=options)
    assert (link.image, str(example.path), notes) == (DOG, DOG, [])
    assert form.signature == from_api({"path": uploaded}, options, **SETTINGS).signature != link.signature
    assert {name: getattr(link, name) for name in NAMES} == SETTINGS and link.options == options

    for model, lenient in ((MODEL, True), ("resnet50", False)):  # the layer may be that of the previous model
        assert from_form(uploaded, model, "layer4", "", "", {"model": "resnet50", "values": {}}).lenient is lenient
    for path in ("/etc/passwd", "https://example.org/a.png"):
        with pytest.raises(Refused):
            from_form(path, "", "", "", "", None)
        with pytest.raises(Refused):
            from_api({"path": path})
    assert split({"layer": "head", "relu": False, "target": None}) == ({"layer": "head"}, {"relu": False})
    assert split(None) == split(["layer"]) == ({}, {})


def test_the_settings_of_an_answer_reproduce_its_request() -> None:
    """The page compares signatures, so a request with the settings of an answer must have the same signature."""
    steps = steps_of(engine.explain, Request(DOG, **SETTINGS, options={"relu": False}))
    answer = next(step for step in steps if isinstance(step, Answer))
    assert isinstance(steps[-1], Stages)
    assert answer.settings.names == SETTINGS and answer.settings.options == {"relu": False}
    assert answer.explanation.raw.shape == (1, *answer.map.shape) and not answer.planes
    assert answer.target == answer.settings.loaded.names.index("goldfish")
    assert answer.confidence == pytest.approx(float(answer.probabilities[answer.target]))
    assert [share for _, share in answer.top] == sorted(answer.probabilities.tolist(), reverse=True)[:5]


def test_a_long_method_keeps_within_the_memory_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the shapes of the layers, times four bytes."""
    loaded, images, values = load(MODEL), torch.zeros(1, 3, 224, 224), Scoring.values
    layers = explainers.list_layers(loaded.model.network, images, spatial=True)
    row = 4 * sum(torch.Size(layer.shape).numel() for layer in layers)
    # Without the limit, the library uses more than three rows on any machine.
    monkeypatch.setattr("explainers.passes.batches.batch_size.SECONDS", 1e9)
    monkeypatch.setattr("explainers.passes.batches.batch_size.reused_bytes", lambda: 2**32)
    for memory, most in ((3 * row + 1, 3), (1, 1)):
        monkeypatch.setattr(limits, "MEMORY", memory)
        batches: list[int] = []
        monkeypatch.setattr(Scoring, "values", lambda self, x, of, to=batches: to.append(len(x)) or values(self, x, of))
        network_calls.explain(MODEL, "occlusion", images, lambda step: True, window=112, stride=112, target=1)
        assert max(batches) == most, "three rows, and at least one"


def test_snippets_call_with_the_settings_on_the_page() -> None:
    """Parsed with the rules of Python and of the shell, for a class with an apostrophe in its name."""
    names = {**SETTINGS, "target": "jack-o'-lantern"}
    settings = engine.resolve(Request(**names, options={"relu": False}))
    python, library, shell = (item["code"] for item in tab.snippets(settings)["items"])

    calls = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call)]
    (predict,) = [call for call in calls if isinstance(call.func, ast.Attribute)]
    given = {word.arg: word.value for word in predict.keywords if word.arg not in ("image", "api_name")}
    assert {name: ast.literal_eval(value) for name, value in given.items()} == {**names, "options": {"relu": False}}

    words = shlex.split(shell.replace("$(", " ").replace(")", " "))
    path, *values = json.loads(words[words.index("-d", words.index("-H")) + 1])["data"]
    assert path == {"path": "$file", "meta": {"_type": "gradio.FileData"}}
    order = list(inspect.signature(endpoints.explain).parameters)[1:]
    assert dict(zip(order, values, strict=True)) == {**names, "options": {"relu": False}, "bands": ""}
    assert f"target={settings.target}, relu=False)" in library and ast.parse(library)


def test_a_quick_call_leaves_a_core_to_the_browser() -> None:
    """A long call uses all threads; the number of the calling thread is restored."""

    def threads(most: int, **more: object) -> int:
        """Return the threads of a call in a process that has started with `most`."""
        spec = importlib.util.find_spec(network_calls.__name__)
        calls = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(calls)
        torch.set_num_threads(most)
        found = int(calls.run(MODEL, lambda *_, **__: torch.tensor(torch.get_num_threads()), torch.zeros(1), **more))
        assert torch.get_num_threads() == most
        return found

    try:
        assert [threads(3), threads(3, progress=None), threads(3, budget=1.0), threads(1)] == [2, 3, 3, 1]
    finally:
        torch.set_num_threads(1)


def test_the_page_says_what_a_visitor_can_do_about_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """No names of functions, commands or variables: a visitor can only choose another model."""
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    for name, start in (
        ("resnet152", "ResNet-152 is not on this server, which does not download models. Choose a model that it has: "),
        ("resnet152?size=96", "ResNet-152 is not on this server"),
        ("resnet5000", "Unknown model 'resnet5000'. "),
    ):
        with pytest.raises(Refused) as refused:
            engine.resolve(Request(model=name))
        text = str(refused.value)
        assert text.startswith(start), text
        assert not any(word in text for word in ("SALISCOPE", "`", "()", "cache", "efficientnet_lite0")), text
        assert "EfficientNet-Lite0" in text or "Choose one from the list of models." in text


def test_the_frame_of_an_animation_and_the_background_are_stated(tmp_path: Path) -> None:
    """Only where they matter: a single frame and an opaque alpha channel need no note."""
    plain, clear, blue = (Image.new("RGBA", (64, 64), color) for color in ("red", (0, 0, 0, 0), "blue"))
    moves, white = "animation. Its first frame", "filled with white"
    for name, frames, expected in (
        ("still.gif", [plain], []),
        ("moving.gif", [plain, blue], [moves]),
        ("moving.webp", [plain, blue], [moves]),
        ("moving.png", [clear, plain], [moves, white]),
        ("opaque.png", [plain], []),
        ("clear.png", [clear], [white]),
        ("clear.webp", [clear], [white]),
        ("photo.jpg", [plain.convert("RGB")], []),
    ):
        more = {"save_all": True, "append_images": frames[1:]} if frames[1:] else {}
        frames[0].save(tmp_path / name, **more)
        request = Request(str(tmp_path / name), model=MODEL)
        settings, image, _ = engine.load_input(engine.resolve(request), request)
        assert len(settings.notes) == len(expected), (name, settings.notes)
        assert all(part in note for part, note in zip(expected, settings.notes, strict=True)), (name, settings.notes)
        assert white not in expected or image.getpixel((5, 5)) == (255, 255, 255)
