"""API answers for segmentation networks and detectors, and the snippets of the API view."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import explainers
from saliscope.compute import engine, model_cache
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.page.agents.tools import all_tools
from saliscope.page.api import answers, snippets
from saliscope.zoo import catalog
from tests.support import dense_nets
from tests.support.catalog import isolate_catalog

SCENE = [("red blob", 1), ("green blob", 2), ("red blob#2", 1)]
REGIONS = [("red blob", 1), ("red blob#1", 1), ("red blob#2", 1), ("green blob", 2), ("__background__", 0)]
PALE = ("#b04040", (40, 40, 140, 140))
DETECTOR, SEGMENTER = "blobs_detection", "blobs_segmentation"
pytestmark = pytest.mark.usefixtures("loaded")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of uploads; both blob models are offered."""
    isolate_catalog(monkeypatch, tmp_path)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, dense_nets.Blobs()))
    monkeypatch.setattr(model_cache, "wait", lambda *_: iter(()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def upload(folder: Path, image: Image.Image | None = None) -> Any:
    path = folder / "scene.png"
    (image or dense_nets.scene()).save(path)
    return {"path": str(path), "meta": {"_type": "gradio.FileData"}}


def test_detections_and_regions_are_listed_and_the_requested_one_is_explained(folder: Path) -> None:
    for target, chosen in {"": 0, "red blob": 0, "red blob#2": 2, "green blob": 1, "2": 1}.items():
        answer = answers.explain(upload(folder), DETECTOR, target=target)
        found = answer["predictions"]
        assert [(each["name"], each["index"]) for each in found] == SCENE and answer["target"] == found[chosen], target
        assert all(0.5 <= each["score"] <= 1 and len(each["box"]) == 4 for each in found)
        assert list(np.load(answer["map"].path).shape) == answer["shape"]
        assert Image.open(answer["overlay"].path).size == dense_nets.scene().size
    answer = answers.explain(upload(folder), SEGMENTER, target="red blob#2")
    assert [(each["name"], each["index"]) for each in answer["predictions"]] == REGIONS
    assert answer["target"] == answer["predictions"][2] and 0 < answer["target"]["share"] < 0.1


def test_without_detections_the_answer_has_no_map(folder: Path) -> None:
    pale = upload(folder, dense_nets.blobs(PALE))
    answer = answers.explain(pale, DETECTOR)
    assert (answer["map"], answer["overlay"], answer["target"], answer["predictions"]) == (None, None, None, [])
    (finding,) = answer["findings"]
    assert finding["code"] == "nothing_found"
    lowered = answers.explain(pale, DETECTOR, options=finding["remedy"])
    assert lowered["target"]["name"] == "red blob" and lowered["options"]["min_score"] == finding["remedy"]["min_score"]


def test_invalid_arguments_are_refused(folder: Path) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (DETECTOR, {"target": "red blob#7"}, "Detected: red blob, green blob, red blob#2."),
        (DETECTOR, {"options": {"min_score": 7}}, "min_score=7"),
        (DETECTOR, {"method": "finer_cam"}, "compares the scores of several classes"),
        (SEGMENTER, {"options": {"min_score": 0.9}}, "has no option “min_score”"),
    ]
    for model, settings, word in wrong:
        with pytest.raises(Refused) as refused:
            answers.explain(upload(folder), model, **settings)
        assert word in str(refused.value), settings
        assert model == SEGMENTER or "default" not in str(refused.value)


@pytest.mark.parametrize("model", [DETECTOR, SEGMENTER])
def test_answers_for_agents_fit_their_schemas(folder: Path, model: str) -> None:
    """With objects, and without any."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install mcp")
    tools = {tool.name: tool for tool in all_tools()}

    def answer(tool: str, **arguments: Any) -> Any:
        _, found = tools[tool](arguments, local=True)
        jsonschema.validate(found, tools[tool].output)
        return found

    for color in ("#d02020", PALE[0]):
        image = upload(folder, dense_nets.blobs((color, PALE[1])))["path"]
        for name in ("explain", "feature_maps"):
            answer(name, model=model, image=image)
    answer("list_layers", model=model)
    answer("list_methods", model=model, name="hires_cam")
    assert answer("list_models", name=model)["details"]["task"] in model


# The snippets


@pytest.mark.parametrize("model, method", [(DETECTOR, "hires_cam"), (DETECTOR, "d_rise"), (SEGMENTER, "saliency")])
def test_the_library_snippet_runs_and_returns_the_map_of_the_page(folder: Path, model: str, method: str) -> None:
    """Oracle: the answer of the engine to the same request."""
    options = {"samples": 8} if method == "d_rise" else {}
    dense_nets.scene().save("photo.jpg", quality=100, subsampling=0)
    for target in ("", "red blob#2"):
        settings: dict[str, Any] = {"model": model, "method": method, "target": target, "options": options}
        answer = answers.explain(upload(folder), **settings)
        items = snippets.snippets(engine.resolve(Request(**settings)))["items"]
        (code,) = [item["code"] for item in items if "load_model" in item["code"]]
        names: dict[str, Any] = {}
        exec(code, names)
        assert isinstance(names["target"], (explainers.BoxScores, explainers.MaskScores))
        expected = torch.from_numpy(np.load(answer["map"].path))
        torch.testing.assert_close(names["e"].map[0], expected, rtol=0.2, atol=0.02)
        assert Image.open("overlay.png").size == dense_nets.scene().size


def test_the_snippet_of_a_network_with_one_channel_runs() -> None:
    name = catalog.add("tests.support.dense_nets:Red", size=(96, 128), labels=["red"], mean=[0] * 3, std=[1] * 3)
    items = snippets.snippets(engine.resolve(Request(model=name)))["items"]
    (code,) = [item["code"] for item in items if "MaskScores" in item["code"]]
    dense_nets.scene().save("photo.jpg")
    names: dict[str, Any] = {}
    exec(code, names)
    assert 0.1 < names["target"].mask.float().mean() < 0.4 and names["e"].map.max() > 0


def test_the_documented_example_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "your_model.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "BoxScores" in block]
    names: dict[str, Any] = {"load_model": lambda name: catalog.load_model(DETECTOR), "photo": dense_nets.scene()}
    exec(code, names)
    assert names["explanation"].map.max() > 0 and Image.open("overlay.png").size == dense_nets.scene().size
