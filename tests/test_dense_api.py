"""The API's answers about segmentation networks and detectors, and the snippets of the API tab."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import explainers
from models import zoo
from tests import dense_nets
from ui.engine import engine, model_cache
from ui.engine.messages import Refused
from ui.engine.request import Request
from ui.serving import endpoints
from ui.tabs import api_tab

SCENE = [("red blob", 1), ("green blob", 2), ("red blob#2", 1)]
REGIONS = [("red blob", 1), ("red blob#1", 1), ("red blob#2", 1), ("green blob", 2), ("__background__", 0)]


@pytest.fixture(autouse=True)
def uploads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Both blob models, a cache of their own, and an upload folder."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(zoo, "SOURCES", (*zoo.SOURCES, dense_nets.Blobs()))
    monkeypatch.setattr(model_cache, "_loaded", model_cache._loaded.copy())
    monkeypatch.setattr(model_cache, "wait", lambda *_: iter(()))
    return tmp_path


def ask(uploads: Path, picture: Image.Image | None = None, **more: Any) -> dict[str, Any]:
    path = uploads / "scene.png"
    (picture or dense_nets.scene()).save(path)
    return endpoints.explain({"path": str(path), "meta": {"_type": "gradio.FileData"}}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("target, chosen", [("", 0), ("red blob", 0), ("red blob#2", 2), ("green blob", 1), ("2", 1)])
def test_detections_are_listed_and_the_one_asked_for_is_explained(uploads: Path, target: str, chosen: int) -> None:
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


def test_nothing_found_is_an_answer_without_a_map(uploads: Path) -> None:
    pale = dense_nets.blobs(("#b04040", (40, 40, 140, 140)))

    answer = ask(uploads, pale, model="blobs_detection")

    assert (answer["map"], answer["overlay"], answer["target"], answer["predictions"]) == (None, None, None, [])
    (finding,) = answer["findings"]
    assert finding["code"] == "nothing_found" and "No object found with a score of at least 0.5" in finding["sentence"]
    lowered = ask(uploads, pale, model="blobs_detection", options=finding["remedy"])
    assert lowered["target"]["name"] == "red blob" and lowered["options"]["min_score"] == finding["remedy"]["min_score"]
    assert lowered.keys() >= answer.keys()


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"target": "blue blob"}, "There is no “blue blob” in this picture"),
        ({"target": "red blob#7"}, "Found: red blob, green blob, red blob#2."),
        ({"target": "teapot"}, "There is no class called “teapot”"),
        ({"options": {"min_score": 7}}, "min_score=7"),
        ({"method": "finer_cam"}, "compares the scores of classes"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(uploads: Path, wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(Refused) as refused:
        ask(uploads, model="blobs_detection", **wrong)

    assert word in str(refused.value) and "Shown instead" not in str(refused.value)


def test_a_detectors_min_score_is_no_option_of_other_models(uploads: Path) -> None:
    with pytest.raises(Refused, match="has no option “min_score”"):
        ask(uploads, model="blobs_segmentation", options={"min_score": 0.9})


def test_feature_maps_have_effects_on_what_was_found(uploads: Path) -> None:
    path = uploads / "scene.png"
    dense_nets.scene().save(path)
    picture: Any = {"path": str(path), "meta": {"_type": "gradio.FileData"}}

    answer = endpoints.feature_maps(picture, "blobs_detection", "backbone.2", sort="effect")

    assert answer["target"] == 1 and answer["channels"][0] == 0 and answer["effect"][0] > 0.4
    dense_nets.blobs().save(path)
    assert endpoints.feature_maps(picture, "blobs_detection", "backbone.2")["target"] is None


@pytest.mark.parametrize("target", ["", "red blob", "red blob#2", "green blob"])
@pytest.mark.parametrize(
    "model, method", [("detection", "hires_cam"), ("detection", "d_rise"), ("segmentation", "saliency")]
)
def test_the_library_snippet_runs_and_gives_the_pages_map(
    uploads: Path, monkeypatch: pytest.MonkeyPatch, model: str, method: str, target: str
) -> None:
    """Oracle: the answer of the engine to the same request."""
    options = {"samples": 8} if method == "d_rise" else {}
    asked = {"model": f"blobs_{model}", "method": method, "target": target, "options": options}
    answer = ask(uploads, **asked)
    settings = engine.resolve(Request(**asked))
    (code,) = [item["code"] for item in api_tab.snippets(settings)["items"] if "load_model" in item["code"]]
    monkeypatch.chdir(uploads)
    dense_nets.scene().save(uploads / "photo.jpg", quality=100, subsampling=0)

    names: dict[str, Any] = {}
    exec(code, names)

    assert isinstance(names["target"], (explainers.BoxScores, explainers.MaskScores))
    torch.testing.assert_close(names["e"].map[0], torch.from_numpy(np.load(answer["map"].path)), rtol=0.2, atol=0.02)
    assert Image.open(uploads / "overlay.png").size == dense_nets.scene().size


def test_the_snippet_of_a_network_of_one_channel_runs(monkeypatch: pytest.MonkeyPatch, uploads: Path) -> None:
    monkeypatch.setattr(zoo, "_ADDED", {})
    name = zoo.add("tests.dense_nets:Red", size=(96, 128), labels=["red"], mean=[0] * 3, std=[1] * 3)
    items = api_tab.snippets(engine.resolve(Request(model=name)))["items"]
    (code,) = [item["code"] for item in items if "MaskScores" in item["code"]]
    monkeypatch.chdir(uploads)
    dense_nets.scene().save("photo.jpg")

    names: dict[str, Any] = {}
    exec(code, names)

    assert 0.1 < names["target"].mask.float().mean() < 0.4 and names["e"].map.max() > 0


def test_the_documented_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "your_model.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "BoxScores" in block]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"load_model": lambda name: zoo.load_model("blobs_detection"), "photo": dense_nets.scene()}

    exec(code, names)

    assert names["explanation"].map.max() > 0 and Image.open("overlay.png").size == dense_nets.scene().size
