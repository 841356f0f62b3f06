"""Requests from the form, a link and the API, and the cost of answering them."""

from __future__ import annotations

import ast
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
from saliscope.images import examples
from saliscope.page.api import tab
from saliscope.page.serving import endpoints
from saliscope.session import engine, network_calls
from saliscope.session.answers import Answer, Stages
from saliscope.session.bundles import links
from saliscope.session.jobs import runs
from saliscope.session.model_cache import load
from saliscope.session.request import NAMES, Request, from_api, from_form, split
from tests.saliscope.session.asking import MODEL

DOG = next(iter(examples.all_examples().values()))
SETTINGS = {"model": MODEL, "layer": "stages.4", "target": "goldfish", "method": "layer_cam"}


@pytest.fixture
def uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An image in the upload folder of Gradio."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return str(shutil.copy(DOG.path, tmp_path / "holiday.jpg"))


pytestmark = pytest.mark.usefixtures("loaded")


def test_form_link_and_api_make_the_same_request(uploaded: str) -> None:
    options = {"relu": False}
    form = from_form(uploaded, *SETTINGS.values(), {"model": MODEL, "values": options})
    program = from_api({"path": uploaded}, json.dumps(options), **SETTINGS)
    query = {links.PARAMETERS[name]: value for name, value in SETTINGS.items()} | {"options": json.dumps(options)}
    link, example, notes = links.read(query)

    assert replace(form, use_cache=False) == program == Request(uploaded, **SETTINGS, options=options)
    assert (link.image, example.id, notes) == (str(DOG.path), DOG.id, [])
    assert form.signature == from_api({"path": uploaded}, options, **SETTINGS).signature != link.signature
    assert {name: getattr(link, name) for name in NAMES} == SETTINGS and link.options == options


def test_the_settings_of_an_answer_reproduce_its_request() -> None:
    """The page compares signatures, so a request with the settings of an answer must have the same signature."""
    request = Request(str(DOG.path), **SETTINGS, options={"relu": False})
    with runs.start(None) as run:
        steps = list(engine.explain(request, run))
    answer = next(step for step in steps if isinstance(step, Answer))

    assert isinstance(steps[-1], Stages)
    assert answer.settings.names == SETTINGS and answer.settings.options == {"relu": False}
    assert answer.explanation.raw.shape == (1, *answer.map.shape) and not answer.planes
    assert answer.target == answer.settings.loaded.names.index("goldfish")
    assert answer.confidence == pytest.approx(float(answer.probabilities[answer.target]))
    assert [share for _, share in answer.top] == sorted(answer.probabilities.tolist(), reverse=True)[:5]


def test_after_a_change_of_model_the_request_is_lenient(uploaded: str) -> None:
    form = {"model": "resnet50", "values": {}}

    assert from_form(uploaded, MODEL, "layer4", "", "", form).lenient
    assert not from_form(uploaded, "resnet50", "layer4", "", "", form).lenient


def test_an_unreadable_link_gives_the_default_request_and_a_note() -> None:
    for query, left_out in (
        ({"layer": "x" * 501}, "layer"),
        ({"options": "{"}, "options"),
        ({"options": "[" * 1999}, "options"),
        ({"options": "[1]"}, "options"),
        ({"options": json.dumps({"x": "y" * 2000})}, "options"),
    ):
        request, _, notes = links.read(query)
        assert getattr(request, left_out) == getattr(Request(), left_out), query
        assert len(notes) == 1 and f"The link is damaged: {left_out} cannot be read" in notes[0], query
    request, example, notes = links.read({"example": "unicorn"})
    assert example == DOG and request.image == str(DOG.path)
    assert len(notes) == 1 and "unicorn" in notes[0]


def test_a_remedy_is_split_into_names_and_options() -> None:
    assert split({"layer": "head", "relu": False, "target": None}) == ({"layer": "head"}, {"relu": False})
    assert split(None) == split(["layer"]) == ({}, {})


def test_an_image_path_outside_the_upload_folder_is_refused(uploaded: str) -> None:
    for path in ("/etc/passwd", "https://example.org/a.png"):
        with pytest.raises(Refused):
            from_form(path, "", "", "", "", None)
        with pytest.raises(Refused):
            from_api({"path": path})


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


def test_all_jobs_of_a_user_who_leaves_are_stopped() -> None:
    with runs.start("ann") as one, runs.start("ann/features") as two, runs.start("anna") as other:
        runs.end("ann")

        assert one.cancelled and two.cancelled and not other.cancelled


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


def test_a_quick_call_leaves_a_core_to_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long call uses all threads; the number of the calling thread is restored."""
    threads: list[int] = []

    def count(*_: object, **__: object) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return torch.zeros(1)

    monkeypatch.setattr(network_calls, "_most_threads", lambda: 3)
    before = torch.get_num_threads()
    for more in ({}, {"progress": None}, {"budget": 1.0}):
        network_calls.run(MODEL, count, torch.zeros(1), **more)
    monkeypatch.setattr(network_calls, "_most_threads", lambda: 1)
    network_calls.run(MODEL, count, torch.zeros(1))
    assert threads == [2, 3, 3, 1] and torch.get_num_threads() == before


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
    plain, clear = Image.new("RGBA", (64, 64), (200, 30, 30, 255)), Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    files = {
        "still.gif": ({"images": [plain]}, []),
        "moving.gif": ({"images": [plain, Image.new("RGBA", (64, 64), "blue")]}, ["animation. Its first frame"]),
        "moving.webp": ({"images": [plain, Image.new("RGBA", (64, 64), "blue")]}, ["animation. Its first frame"]),
        "moving.png": ({"images": [clear, plain]}, ["animation. Its first frame", "filled with white"]),
        "opaque.png": ({"images": [plain]}, []),
        "clear.png": ({"images": [clear]}, ["filled with white"]),
        "clear.webp": ({"images": [clear]}, ["filled with white"]),
        "photo.jpg": ({"images": [plain.convert("RGB")]}, []),
    }
    for name, (content, expected) in files.items():
        first, *rest = content["images"]
        first.save(tmp_path / name, **({"save_all": True, "append_images": rest} if rest else {}))
        request = Request(str(tmp_path / name), model=MODEL)
        settings, image, _ = engine.load_input(engine.resolve(request), request)
        assert len(settings.notes) == len(expected), (name, settings.notes)
        assert all(part in note for part, note in zip(expected, settings.notes, strict=True)), (name, settings.notes)
        if "filled with white" in expected:
            assert image.getpixel((5, 5)) == (255, 255, 255)
