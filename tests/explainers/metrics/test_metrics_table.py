"""The table of all metrics: its numbers, its stars, its rows."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from benchmarks.faithfulness.photos import Photo
from benchmarks.metrics import cell, measure, stars, table
from explainers import METRICS, evaluate
from tests.support.nets import curved, random_images


def test_numbers_equal_evaluate_image_by_image():
    net, x = curved(), random_images(2)
    paths = [Photo("a", x[:1], 1), Photo("b", x[1:], 2)]
    metrics = ["infidelity", "sensitivity_max", "completeness_gap"]
    numbers = measure(SimpleNamespace(network=net), paths, ["saliency", "deep_lift"], metrics, runs=2)
    options = {"sensitivity_max": {"samples": 2}}
    found = evaluate(net, x, "deep_lift", target=[1, 2], metrics=metrics, options=options)
    for name in metrics:
        assert [*numbers["deep_lift"][name].values()] == pytest.approx(found.values[name].tolist(), abs=1e-9)
        if METRICS[name].controls:
            edges = found.controls[name]["edge"].tolist()
            assert [*numbers["edge"][name].values()] == pytest.approx(edges, abs=1e-9)
    lines = table(numbers, ["saliency", "deep_lift"], metrics)
    assert lines[0] == "| | Infidelity | Sensitivity-max | Completeness gap |"
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "`saliency`", "`deep_lift`", "**random**", "**edge**", "**center**",
    ]  # fmt: skip
    assert cell(numbers, "edge", "completeness_gap") == "" and "±" in cell(numbers, "deep_lift", "infidelity")


def test_a_star_requires_all_controls_and_the_better_side():
    """Twelve images: with fewer, no difference passes the sign-flip test after the correction."""
    values = {str(k): 5.0 + k % 3 for k in range(12)}
    low, high = ({photo: value - shift for photo, value in values.items()} for shift in (4.0, -4.0))
    unsure = {photo: (12.0 if k % 2 else 0.0) for k, photo in enumerate(values)}

    def starred(metric: str, *controls: dict[str, float]) -> bool:
        numbers = {"map": {metric: values}}
        numbers |= {name: {metric: each} for name, each in zip(("random", "edge", "center"), controls, strict=True)}
        return stars(numbers, ["map"], [metric]) == {("map", metric)}

    assert starred("insertion", low, low, low) and not starred("deletion", low, low, low)
    assert starred("deletion", high, high, high) and not starred("insertion", low, high, low)
    assert starred("sparseness", high, high, high) and not starred("sparseness", low, high, low)
    assert not starred("insertion", low, low, unsure), "not sure"


def test_a_run_resumes_where_another_stopped():
    paths, seen = [Photo("a", random_images(1), 1)], []
    model = SimpleNamespace(network=curved())
    first = measure(model, paths, ["saliency"], ["sparseness"], 2, done=lambda numbers: seen.append(str(numbers)))
    again = measure(model, paths, ["saliency", "lrp"], ["sparseness"], 2, json.loads(json.dumps(first)), seen.append)
    assert len(seen) == 2 and list(again) == ["saliency", "random", "edge", "center", "lrp"]
    assert again["saliency"] == first["saliency"]
