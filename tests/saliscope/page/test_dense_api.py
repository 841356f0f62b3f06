"""API answers for segmentation networks and detectors, and the snippets of the API tab."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import explainers
from saliscope.errors import Refused
from saliscope.page.agents.tools import all_tools
from saliscope.page.api import tab
from saliscope.page.serving import endpoints
from saliscope.session import engine, model_cache
from saliscope.session.request import Request
from saliscope.zoo import catalog
from tests.support import dense_nets

SCENE = [("red blob", 1), ("green blob", 2), ("red blob#2", 1)]
REGIONS = [("red blob", 1), ("red blob#1", 1), ("red blob#2", 1), ("green blob", 2), ("__background__", 0)]


@pytest.fixture(autouse=True)
def uploads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Both blob models, a separate model cache, and an upload folder."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, dense_nets.Blobs()))
    monkeypatch.setattr(model_cache, "_loaded", model_cache._loaded.copy())
    monkeypatch.setattr(model_cache, "wait", lambda *_: iter(()))
    return tmp_path


def ask(uploads: Path, image: Image.Image | None = None, **more: Any) -> dict[str, Any]:
    path = uploads / "scene.png"
    (image or dense_nets.scene()).save(path)
    return endpoints.explain({"path": str(path), "meta": {"_type": "gradio.FileData"}}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("target, chosen", [("", 0), ("red blob", 0), ("red blob#2", 2), ("green blob", 1), ("2", 1)])
def test_detections_are_listed_and_the_requested_one_is_explained(uploads: Path, target: str, chosen: int) -> None:
    answer = ask(uploads, model="blobs_detection", target=target)

    found = answer["predictions"]
    assert [(each["name"], each["index"]) for each in found] == SCENE and answer["target"] == found[chosen]
    assert all(0.5 <= each["score"] <= 1 and len(each["box"]) == 4 for each in found)
    values = np.load(answer["map"].path)
    assert list(values.shape) == answer["shape"] and values.max() > 0
    assert Image.open(answer["overlay"].path).size == dense_nets.scene().size


def test_regions_are_listed_with_their_share_of_the_pixels(uploads: Path) -> None:
    answer = ask(uploads, model="blobs_segmentation", target="red blob#2")

    assert [(each["name"], each["index"]) for each in answer["predictions"]] == REGIONS
    assert answer["target"] == answer["predictions"][2] and 0 < answer["target"]["share"] < 0.1


def test_without_detections_the_answer_has_no_map(uploads: Path) -> None:
    pale = dense_nets.blobs(("#b04040", (40, 40, 140, 140)))

    answer = ask(uploads, pale, model="blobs_detection")

    assert (answer["map"], answer["overlay"], answer["target"], answer["predictions"]) == (None, None, None, [])
    (finding,) = answer["findings"]
    assert (
        finding["code"] == "nothing_found" and "No object detected with a score of at least 0.5" in finding["sentence"]
    )
    lowered = ask(uploads, pale, model="blobs_detection", options=finding["remedy"])
    assert lowered["target"]["name"] == "red blob" and lowered["options"]["min_score"] == finding["remedy"]["min_score"]
    assert lowered.keys() >= answer.keys()


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"target": "blue blob"}, "“blue blob” was not detected in this image"),
        ({"target": "red blob#7"}, "Detected: red blob, green blob, red blob#2."),
        ({"target": "teapot"}, "Unknown class “teapot”"),
        ({"options": {"min_score": 7}}, "min_score=7"),
        ({"method": "finer_cam"}, "compares the scores of several classes"),
    ],
)
def test_invalid_arguments_are_refused(uploads: Path, wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(Refused) as refused:
        ask(uploads, model="blobs_detection", **wrong)

    assert word in str(refused.value) and "default" not in str(refused.value)


def test_min_score_is_only_an_option_of_detectors(uploads: Path) -> None:
    with pytest.raises(Refused, match="has no option “min_score”"):
        ask(uploads, model="blobs_segmentation", options={"min_score": 0.9})


@pytest.mark.parametrize("model", ["blobs_detection", "blobs_segmentation"])
@pytest.mark.parametrize("color", ["#d02020", "#b04040"])
def test_answers_for_agents_fit_their_schemas(uploads: Path, model: str, color: str) -> None:
    """With objects, and without any."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install mcp")
    path = uploads / "scene.png"
    dense_nets.blobs((color, (40, 40, 140, 140))).save(path)
    tools = {tool.name: tool for tool in all_tools()}
    calls: dict[str, dict[str, Any]] = {
        "explain": {"image": str(path)},
        "feature_maps": {"image": str(path)},
        "list_layers": {},
        "list_methods": {"name": "hires_cam"},
    }
    for name, arguments in calls.items():
        _, answer = tools[name]({"model": model, **arguments}, local=True)
        jsonschema.validate(answer, tools[name].output)
    _, models = tools["list_models"]({"name": model}, local=True)
    jsonschema.validate(models, tools["list_models"].output)
    assert models["details"]["task"] in model


def test_feature_maps_have_effects_on_detected_objects(uploads: Path) -> None:
    path = uploads / "scene.png"
    dense_nets.scene().save(path)
    image: Any = {"path": str(path), "meta": {"_type": "gradio.FileData"}}

    answer = endpoints.feature_maps(image, "blobs_detection", "backbone.2", sort="effect")

    assert answer["target"] == 1 and answer["channels"][0] == 0 and answer["effect"][0] > 0.4
    dense_nets.blobs().save(path)
    assert endpoints.feature_maps(image, "blobs_detection", "backbone.2")["target"] is None


@pytest.mark.parametrize("target", ["", "red blob", "red blob#2", "green blob"])
@pytest.mark.parametrize(
    "model, method", [("detection", "hires_cam"), ("detection", "d_rise"), ("segmentation", "saliency")]
)
def test_the_library_snippet_runs_and_returns_the_map_of_the_page(
    uploads: Path, monkeypatch: pytest.MonkeyPatch, model: str, method: str, target: str
) -> None:
    """Oracle: the answer of the engine to the same request."""
    options = {"samples": 8} if method == "d_rise" else {}
    request = {"model": f"blobs_{model}", "method": method, "target": target, "options": options}
    answer = ask(uploads, **request)
    settings = engine.resolve(Request(**request))
    (code,) = [item["code"] for item in tab.snippets(settings)["items"] if "load_model" in item["code"]]
    monkeypatch.chdir(uploads)
    dense_nets.scene().save(uploads / "photo.jpg", quality=100, subsampling=0)

    names: dict[str, Any] = {}
    exec(code, names)

    assert isinstance(names["target"], (explainers.BoxScores, explainers.MaskScores))
    torch.testing.assert_close(names["e"].map[0], torch.from_numpy(np.load(answer["map"].path)), rtol=0.2, atol=0.02)
    assert Image.open(uploads / "overlay.png").size == dense_nets.scene().size


def test_the_snippet_of_a_network_with_one_channel_runs(monkeypatch: pytest.MonkeyPatch, uploads: Path) -> None:
    monkeypatch.setattr(catalog, "_ADDED", {})
    name = catalog.add("tests.support.dense_nets:Red", size=(96, 128), labels=["red"], mean=[0] * 3, std=[1] * 3)
    items = tab.snippets(engine.resolve(Request(model=name)))["items"]
    (code,) = [item["code"] for item in items if "MaskScores" in item["code"]]
    monkeypatch.chdir(uploads)
    dense_nets.scene().save("photo.jpg")

    names: dict[str, Any] = {}
    exec(code, names)

    assert 0.1 < names["target"].mask.float().mean() < 0.4 and names["e"].map.max() > 0


def test_the_documented_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "your_model.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "BoxScores" in block]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "load_model": lambda name: catalog.load_model("blobs_detection"),
        "photo": dense_nets.scene(),
    }

    exec(code, names)

    assert names["explanation"].map.max() > 0 and Image.open("overlay.png").size == dense_nets.scene().size
