"""The badges in the method list, from the checked-in verdicts or from sample verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import explainers
from saliscope.compute.answers import Settings
from saliscope.compute.methods import badges, messages
from saliscope.page.methods import picker

METHODS = explainers.METHODS
NETWORK = "efficientnet_lite0"
GOOD = ("better", "better", "better")
Write = Callable[..., None]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes verdicts for methods as `python -m benchmarks.faithfulness` does."""

    def write(**methods: dict[str, Any]) -> None:
        found = {"network": NETWORK, "precision": "bf16", "steps": 12, "photographs": 109, "test": "sign-flip test"}
        badges.FILE.write_text(json.dumps(found | {"methods": methods}), encoding="utf-8")
        badges.table.cache_clear()

    monkeypatch.setattr(badges, "FILE", tmp_path / "verdicts.json")
    badges.table.cache_clear()
    yield write
    badges.table.cache_clear()


def verdict(*beside: str, **more: Any) -> dict[str, Any]:
    """Return the entry of a method with these verdicts against random maps, edge maps and a centered blob."""
    places = {control: {"verdict": each} for control, each in zip(("random", "edge", "center"), beside, strict=True)}
    found = {"n": 109, "beside": places, "better_than_controls": beside == GOOD}
    return found | {"logit": 0.1, "cascade": 0.1, "depends_on_weights": True} | more


def texts(name: str, loaded: Any) -> list[str]:
    return [text for text, _ in badges.badges(METHODS[name], loaded)]


def test_a_method_that_is_no_better_than_controls_has_a_badge_that_names_them(loaded: Any, sample: Write) -> None:
    sample(
        grad_cam=verdict(*GOOD),
        saliency=verdict("better", "worse", "level"),
        smooth_grad=verdict("level", "worse", "worse"),
        lrp=verdict("better", "level", "better"),
        rise=verdict("level", "level", "level", n=0),
        edge_control=verdict("better", "level", "worse"),
    )
    assert texts("grad_cam", loaded) == texts("rise", loaded) == [], "better, or not measured"
    assert texts("saliency", loaded) == ["not better than a centered blob, worse than edge maps on this network"]
    sentence = "not better than random maps, worse than edge maps and a centered blob on this network"
    assert texts("smooth_grad", loaded) == [sentence]
    assert texts("lrp", loaded) == ["not better than edge maps on this network"]
    assert texts("edge_control", loaded) == [messages.NO_CLASS], "a control itself"
    ((_, tip),) = badges.badges(METHODS["saliency"], loaded)
    assert tip == (
        f"Insertion minus deletion over 109 images with {NETWORK}: better than random maps, not than a "
        "centered blob, worse than edge maps (sign-flip test, p < 0.05, adjusted for the number of comparisons)."
    )
    other = replace(loaded, name="resnet18")
    assert texts("saliency", other) == [f"not better than a centered blob, worse than edge maps on {NETWORK}"]

    listed = {
        name: more.get("badges") for _, name, _, more in picker.items(Settings(loaded, "", None, METHODS["lrp"], {}))
    }
    assert [text for text, _ in listed["smooth_grad"]] == [sentence] and listed["grad_cam"] is None


def test_a_method_that_fails_the_randomization_test_has_a_badge(loaded: Any, sample: Write) -> None:
    sample(
        guided_backprop=verdict(*GOOD, logit=0.999, cascade=0.34, depends_on_weights=False),
        eigen_cam=verdict(*GOOD, logit=1.0, cascade=0.3, depends_on_weights=False),
        fem=verdict(*GOOD, logit=1.0, cascade=-0.67, depends_on_weights=False),
        grad_cam=verdict(*GOOD, logit=None, cascade=None, depends_on_weights=None),
    )
    assert texts("guided_backprop", loaded) == ["hardly depends on the weights"]
    assert texts("eigen_cam", loaded) == [messages.NO_CLASS], "without the last layer, it depends on earlier layers"
    assert texts("fem", loaded) == [messages.NO_CLASS, messages.NO_WEIGHTS]
    assert texts("grad_cam", loaded) == []
    tip = dict(badges.badges(METHODS["fem"], loaded))[messages.NO_WEIGHTS]
    assert "1.00 for the last layer, −0.67 for all layers" in tip and NETWORK in tip


def test_without_a_valid_table_only_class_agnostic_methods_have_a_badge(loaded: Any, sample: Write) -> None:
    """Oracle: `reads_class` of the registry."""
    for content in (None, "{"):
        if content:
            badges.FILE.write_text(content, encoding="utf-8")
            badges.table.cache_clear()
        for method in METHODS.values():
            assert texts(method.name, loaded) == ([] if method.reads_class else ["class-agnostic"])
