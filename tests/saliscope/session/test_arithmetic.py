"""How one value is computed, on the page: the operations, the products, and the kernels of the first layer."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

import explainers
from saliscope.errors import Refused
from saliscope.page.channels import arithmetic_view
from saliscope.session.arithmetic import engine, messages
from saliscope.session.arithmetic.answers import ValueOf
from saliscope.session.jobs import runs
from saliscope.session.request import Request
from tests.saliscope.session.asking import CAT, MODEL, inputs

REQUEST = Request(CAT, model=MODEL, layer="stages.2")


pytestmark = pytest.mark.usefixtures("loaded")


def traced(number: int, cell: tuple[int, int], **changes: Any) -> ValueOf:
    with runs.start(None) as run:
        *_, last = engine.trace(replace(REQUEST, **changes), number, cell, run)
    return last


def test_the_operations_lead_to_the_value() -> None:
    """Oracle: the feature map, and the skip connection read by hand."""
    network, images = inputs()
    step = traced(5, (3, 4))
    maps = explainers.feature_maps(network, images, layer="stages.2")[0]
    skip = explainers.feature_maps(network, images, layer="stages.2.0")[0, 5, 3, 4]

    rows = messages.rows(step)
    assert [name for name, _, _ in rows] == ["Sum of 240 products", "Batch norm", "Addition"]
    assert rows[0][1] == "stages.2.1.project.0, 1 × 1 convolution"
    assert rows[2][1].startswith(f"{'−' if skip < 0 else '+'} {abs(float(skip)):.4g}")
    assert rows[-1][2] == messages.number(float(maps[5, 3, 4])) and rows[-1][2] in messages.title(step)
    found = step.arithmetic
    listed = sum(each.input * each.weight for each in found.largest)
    assert found.total == pytest.approx(listed + found.others) and found.inputs is None
    products = [abs(each.input * each.weight) for each in found.largest]
    assert products == sorted(products, reverse=True) and all(each.cell == (3, 4) for each in found.largest)
    packed = arithmetic_view.value(step)
    assert packed["products"][-1][0] == "230 others" and len(packed["path"]) == 3
    assert "difference of" in packed["check"]
    assert pickle.loads(pickle.dumps(step.arithmetic)).count == 240, "it may come from another process"


def test_kernels_of_the_first_layer_have_colors() -> None:
    network, _ = inputs()
    found = traced(12, (0, 3), layer="stem").arithmetic
    weights = network.stem[1].weight
    torch.testing.assert_close(found.kernels, weights)
    assert found.kernel == 12 and found.inputs.shape == (3, 3, 3)
    torch.testing.assert_close(found.weights, weights[12])
    packed = arithmetic_view.value(traced(12, (111, 111), layer="stem"))
    assert packed["kernels"]["shape"] == [32, 3, 3, 3]
    assert any(row[0].startswith(("red", "green", "blue")) for row in packed["products"])
    assert messages.rows(traced(12, (0, 3), layer="stem"))[-1][:2] == ["ReLU6", "limited to 0 to 6"]
    assert traced(3, (0, 0), layer="stages.2.0.depthwise").arithmetic.kernels is None


def test_wrong_cells_and_channels_are_refused() -> None:
    with pytest.raises(Refused, match="No cell at row 29"):
        traced(5, (28, 0))
    with pytest.raises(explainers.BadOption, match="channel=40 does not exist"):
        traced(40, (0, 0))
