"""What a visitor sees before anything is computed: the stored answer, its picture in the HTML, and the stored run."""

from __future__ import annotations

import base64
import io
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import explainers
from benchmarks import landing
from explainers.maps.overlays import RULE
from saliscope.compute.request import Request
from saliscope.images import examples
from saliscope.page.first_paint.first_paint import head
from saliscope.page.overlay.stored import LAYER, load_stored, matches

SCRIPT = "page-0123456789abcdef.js"
"""The script of the page, which the head loads early."""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SALISCOPE_MODEL", "SALISCOPE_MODELS"):
        monkeypatch.delenv(name, raising=False)


def stored_answer() -> dict[str, Any]:
    found = load_stored("auto")
    assert found is not None
    return found


def values(packed: dict[str, Any]) -> torch.Tensor:
    """The values of a packed map."""
    raw = np.frombuffer(base64.b64decode(packed["b64"]), packed["dtype"]).astype("float32") * packed.get("scale", 1)
    return torch.from_numpy(raw.reshape(packed["h"], packed["w"]))


def without_percentages(parts: list[Any]) -> list[str]:
    return [re.sub(r"\d+(\.\d+)?%", "%", str(part)) for part in parts]


def test_the_stored_answer_equals_the_engines() -> None:
    """When this fails: `python -m benchmarks.landing`."""
    stored, computed = stored_answer(), json.loads(json.dumps(landing.compute()))
    for name in ("example", "model", "package", "choices", "guide", "network"):
        assert stored[name] == computed[name], name
    for name in ("status", "headline"):
        assert without_percentages(stored[name]) == without_percentages(computed[name])
    torch.testing.assert_close(values(stored["view"]["map"]), values(computed["view"]["map"]), rtol=1e-3, atol=1e-4)
    assert stored["view"]["crop"] == computed["view"]["crop"] and stored["view"]["words"] == computed["view"]["words"]
    for a, b in zip(stored["strip"]["stages"], computed["strip"]["stages"], strict=True):
        assert a["layer"] == b["layer"]
        torch.testing.assert_close(values(a["map"]), values(b["map"]), rtol=1e-2, atol=1e-3)
    shares = [{each["name"]: each["share"] for each in one["classes"]["items"]} for one in (stored, computed)]
    assert shares[0] == pytest.approx(shares[1], abs=1e-3)


def test_the_stored_answer_is_shown_only_for_the_same_model_and_example(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_stored("auto") and load_stored("efficientnet_lite0")
    for model in ("resnet50", None):
        assert "stored" not in head(SCRIPT, model), "another model is requested, or that of the owner"
    monkeypatch.setenv("SALISCOPE_MODELS", "resnet50")
    assert load_stored("auto") is None, "the host does not offer it"
    monkeypatch.setenv("SALISCOPE_MODELS", "resnet50, efficientnet_lite0")
    assert load_stored("auto")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert load_stored("auto") is None, "its weights are not installed"
    reordered = dict(reversed(examples.all_examples().items()))
    monkeypatch.setattr(examples, "all_examples", lambda: reordered)
    assert load_stored("auto") is None, "another example is the first one"


def test_the_stored_answer_is_that_of_its_example_with_default_settings() -> None:
    stored, (example, other, *_) = stored_answer(), examples.all_examples().values()
    defaults = {name: chosen for name, (_, chosen) in stored["choices"].items()}
    changes = ({"layer": "stem"}, {"target": "goldfish"}, {"options": {"relu": False}}, {"bands": "3,2,1"})
    for settings in ({}, defaults, *changes):
        assert matches(stored, Request(**settings), example) == (settings not in changes), settings
    assert not matches(stored, Request(), other) and not matches(stored, Request(), None)


def muted_by_css(crop: Image.Image, page: str) -> Image.Image:
    """The crop as browsers filter it: https://www.w3.org/TR/filter-effects-1/#saturateEquivalent."""
    found = re.search(r"filter: saturate\(([\d.]+)\) brightness\(([\d.]+)\)", page)
    assert found
    keep, light = map(float, found.groups())
    assert (keep, light) == (RULE["coarse_color"], RULE["coarse_light"])
    gray = np.asarray([0.213, 0.715, 0.072]) * (1 - keep)
    pixels = np.asarray(crop, float) @ (keep * np.eye(3) + gray[None]).T * light
    return Image.fromarray(pixels.round().clip(0, 255).astype("uint8")).convert("RGBA")


def test_the_picture_in_the_html_is_the_stored_map() -> None:
    """Oracle: the overlay of the library. The head also has the stored answer for the scripts."""
    text, stored = head(SCRIPT, "auto"), stored_answer()
    assert not re.search("CONTENT|DEFAULTS|STORED", text)
    assert f'<link rel="modulepreload" href="hl/{SCRIPT}">' in text
    assert json.dumps(stored["headline"][1])[1:-1] in text
    found = re.search(r"const defaults = (\{.*?\})", text)
    defaults = {"model": "efficientnet_lite0", "layer": "head", "method": "grad_cam", "example": "dog", "v": "1"}
    assert found and json.loads(found[1]) == defaults
    sent = re.search(r"stored = (\{.*\});\n", text)
    assert sent
    props = json.loads(sent[1])["props"]
    assert props["hl-overlay"]["value"]["map"] == stored["view"]["map"]
    assert props["hl-image"]["value"]["image"] == "example:dog", "a click before the first answer is about it"

    source = stored["view"]["crop"]["src"]
    crop = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("RGB")
    drawn = explainers.overlay(crop, values(stored["view"]["map"]))
    layer = Image.open(io.BytesIO(LAYER.read_bytes())).convert("RGBA").resize(crop.size)
    picture = np.asarray(Image.alpha_composite(muted_by_css(crop, text), layer).convert("RGB"), int)
    assert np.abs(picture - np.asarray(drawn, int)).mean() < 4, "run `python -m benchmarks.landing`"


def test_the_stored_run_of_the_training_lab_is_that_of_the_first_preset() -> None:
    stored, computed = json.loads(landing.LAB.read_text(encoding="utf-8")), landing.compute_lab()
    assert re.fullmatch(r"Example: trained for 240 steps · loss [\d.e-]+", stored["line"])
    assert stored["at"] == computed["at"] and stored["layers"] == computed["layers"] and stored["state"] == "done"
    assert stored["loss"][:20] == pytest.approx(computed["loss"][:20], rel=1e-3), "rounding grows with the steps"
    assert stored["loss"][-1] < stored["loss"][0] / 100
