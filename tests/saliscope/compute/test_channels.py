"""Channels on the page: statistics, contributions, gradients, receptive fields, and how a value is computed."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

import explainers
from saliscope.compute import engine, model_cache
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import Answer, Stages
from saliscope.compute.arithmetic import engine as arithmetic
from saliscope.compute.arithmetic import messages as value_messages
from saliscope.compute.arithmetic.answers import ValueOf
from saliscope.compute.channels import engine as channels
from saliscope.compute.channels import messages
from saliscope.compute.channels.answers import (
    Channel,
    Contribution,
    InputGradient,
    Measures,
    ReceptiveFields,
    Sheet,
    Unchanged,
)
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.page.channels import arithmetic as arithmetic_view
from saliscope.page.channels import view
from saliscope.page.components.thumbnails import thumbnails
from tests.saliscope.compute.asking import CAT, MODEL, SMALL, inputs, last_steps, steps_of

REQUEST = Request(CAT, model=MODEL)


pytestmark = pytest.mark.usefixtures("loaded")


def steps(function: Any, request: Request = REQUEST, **more: Any) -> dict[type, Any]:
    return last_steps(request, function, **more)


def signed(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def test_statistics_are_those_of_the_layer_values() -> None:
    """Oracle: the library's feature maps; Hoyer's sparsity of vectors where it is known. Nothing is sent twice."""
    sheet = steps(channels.sheet)[Sheet]
    maps = explainers.feature_maps(*inputs(), layer="head")[0]
    assert sheet.total == len(maps) == len(sheet.numbers) == 1280
    torch.testing.assert_close(sheet.means, maps.mean((1, 2)))
    torch.testing.assert_close(sheet.maps, maps[sheet.numbers])
    assert sheet.numbers[0] == int(maps.mean((1, 2)).argmax())
    assert sheet.dead.tolist() == [not bool(plane.any()) for plane in maps] and 0 < int(sheet.dead.sum()) < 1280
    assert sheet.sparsity.isnan().tolist() == sheet.dead.tolist()
    one, alive = torch.tensor([[[0.0, 0], [0, -3]]]), torch.tensor([False])
    assert float(channels.sparsity(one, alive)) == pytest.approx(1)
    assert float(channels.sparsity(torch.ones(1, 2, 2), alive)) == 0
    assert math.isnan(float(channels.sparsity(torch.ones(1, 1, 1), alive)))

    again = steps(channels.sheet, known=sheet.ids.channels)
    other = steps(channels.sheet, replace(REQUEST, target="goldfish"), known=sheet.ids.channels)
    assert Sheet not in again and again[Unchanged].ids == sheet.ids
    assert Sheet not in other and other[Unchanged].ids.target != sheet.ids.target
    assert Sheet in steps(channels.sheet, replace(REQUEST, layer="stages.2"), known=sheet.ids.channels)


def test_shares_are_gradient_times_activation_and_sum_to_hirescam() -> None:
    """Oracle: HiResCAM sums the same product over the channels; the effect of one channel is that of all measured."""
    request = replace(REQUEST, model=SMALL, layer="stages.2", target="tabby")
    label = model_cache.load(MODEL).names.index("tabby")
    values = steps(channels.measure, request, kind="gradient")[Measures].values
    contribution = steps(channels.channel, request, number=3)[Contribution]
    cam = explainers.hires_cam(*inputs(CAT, SMALL), label, layer="stages.2", relu=False)
    effects = explainers.channel_effects(*inputs(CAT, SMALL), label, layer="stages.2")[0]

    assert float(values.sum()) == pytest.approx(float(cam.sum()), rel=1e-4)
    torch.testing.assert_close(contribution.parts, values)
    assert contribution.effect == pytest.approx(float(effects[3]), rel=1e-3, abs=1e-5)
    for parts, share in (([1.0, 3.0], True), ([1.0, -0.9], False)):
        some = replace(contribution, number=0, parts=torch.tensor(parts))
        assert (", 25% of the layer's sum" in messages.contribution(some)[0]) == share, "only if they do not cancel"
    lines = messages.contribution(contribution)
    assert f"{float(values[3]):+.3g}".replace("-", "−") in lines[0] and "of 40 channels" in lines[0]
    assert ("falls" if contribution.effect > 0 else "rises") in lines[-1] and "tabby" in lines[-1]


def test_the_gradient_is_that_of_the_cell_or_of_its_value_before_a_saturated_activation() -> None:
    """Oracle: the library's saliency of that unit, or of the unit of the batch norm before the ReLU6."""

    def saliency(*unit: Any) -> torch.Tensor:
        return explainers.explain("saliency", *inputs(), explainers.unit(*unit), compare=False).map[0].abs()

    early = replace(REQUEST, layer="stages.2")
    gradient = steps(channels.channel, early, number=7)[InputGradient]
    at = steps(channels.channel, early, number=7, cell=(2, 3))
    torch.testing.assert_close(at[InputGradient].map, saliency("stages.2", 7, (2, 3)))
    assert Contribution not in at and not at[InputGradient].strongest
    assert gradient.strongest and gradient.map.any() and gradient.before is None
    left, top, right, bottom = gradient.window
    inside = gradient.map[top:bottom, left:right]
    assert inside.count_nonzero() == gradient.map.count_nonzero() and right - left < 0.6 * 224
    assert view.input_gradient(gradient)["map"]["h"] == bottom - top

    maps = explainers.feature_maps(*inputs(), layer="head")[0]
    saturated, dead = int(maps.amax((1, 2)).argmax()), int(maps.amax((1, 2)).argmin())
    for number, value, low, high in ((saturated, 6, 6, 100), (dead, 0, -100, 0)):
        cell = divmod(int(maps[number].argmax()), 7)
        found = steps(channels.channel, number=number, cell=cell)[InputGradient]
        torch.testing.assert_close(found.map, saliency("head.1", number, found.cell))
        assert found.value == value and found.map.any() and low < found.before < high
        said = messages.input_gradient(found)
        assert f"before the activation function, which sets {signed(found.before)}" in said
    none = replace(found, map=torch.zeros_like(found.map), before=None)
    assert "is zero" in messages.input_gradient(none) and "map" not in view.input_gradient(none)


def test_receptive_fields_of_all_cells_equal_those_of_each_cell() -> None:
    """Oracle: `Layer.receptive_field`, cell by cell."""
    request = replace(REQUEST, layer="stages.1")
    fields = steps(channels.channel, request, number=0)[ReceptiveFields]
    (layer,) = [each for each in explainers.list_layers(*inputs()) if each.name == "stages.1"]

    rows, columns = fields.spans
    for row, column in [(0, 0), (5, 11), (55, 3), (28, 28)]:
        box = columns[column][0], rows[row][0], columns[column][1], rows[row][1]
        assert [round(224 * side) for side in box] == list(layer.receptive_field((row, column)))


def test_unknown_channels_and_cells_raise() -> None:
    for number, cell in ((-1, None), (1280, None), (0, (7, 0)), (0, (0, -1))):
        with pytest.raises(Refused, match="has no channel|No cell at"):
            steps(channels.channel, number=number, cell=cell)
    with pytest.raises(Refused, match="No cell at row 29"):
        traced(5, (28, 0))
    with pytest.raises(explainers.BadOption, match="channel=40 does not exist"):
        traced(40, (0, 0))


def test_large_layers_come_in_pages_and_large_grids_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses stay below the size limit of the page."""
    assert channels.capacity(torch.empty(1, 7, 7)) == channels.MOST
    assert channels.capacity(torch.empty(1, 112, 112)) == 119
    assert channels.capacity(torch.empty(1, 224, 448)) == channels.capacity(torch.empty(1, 56, 112))
    large = replace(REQUEST, layer="stages.0")
    sheet = steps(channels.sheet, large, numbers=[5, 2])[Sheet]
    packed = view.sheet(sheet, "1")
    assert sheet.numbers == [5, 2] and packed["cell"] == [112, 112] and "averaged" not in packed["note"]
    assert steps(channels.channel, large, number=2, cell=(0, 0))[Channel].map.shape == (112, 112)
    monkeypatch.setattr(channels, "MOST", 640)
    assert len(steps(channels.sheet)[Sheet].numbers) == 640, "of 1280 channels"


def test_a_channel_is_the_target() -> None:
    """Oracle: the library's own unit; a name that is not a channel stays an unknown class."""
    name = "channel 12 of stages.2"
    found = steps(engine.explain, replace(REQUEST, method="saliency", target=name))
    answer = found[Answer]
    expected = explainers.explain("saliency", *inputs(), explainers.unit("stages.2", 12), compare=False)
    torch.testing.assert_close(answer.map, expected.map[0])
    assert answer.name == name == answer.settings.names["target"]
    earlier = ["stem", "stages.0", "stages.1.0", "stages.1", "stages.2.0", "stages.2"]
    assert list(found[Stages].maps) == earlier, "later blocks have no part in it"
    assert page_messages.unit(answer.settings).startswith("activation")
    for wrong in ("channel 40 of stages.2", "channel 1 of nowhere", "channel -1 of stages.2"):
        settings = engine.resolve(replace(REQUEST, target=wrong))
        assert settings.unit is None and settings.notes[0].startswith("Unknown class")
    contribution = steps(channels.channel, replace(REQUEST, target=name), number=3)[Contribution]
    assert contribution.subject.name == "tiger cat" and "logit of tiger cat" in messages.contribution(contribution)[-1]


def traced(number: int, cell: tuple[int, int], **changes: Any) -> ValueOf:
    found: ValueOf = steps_of(arithmetic.trace, replace(REQUEST, **{"layer": "stages.2", **changes}), number, cell)[-1]
    return found


def test_the_operations_lead_to_the_value() -> None:
    """Oracle: the feature map, and the skip connection read by hand."""
    network, images = inputs()
    step = traced(5, (3, 4))
    maps = explainers.feature_maps(network, images, layer="stages.2")[0]
    skip = explainers.feature_maps(network, images, layer="stages.2.0")[0, 5, 3, 4]

    rows = value_messages.rows(step)
    assert [name for name, _, _ in rows] == ["Sum of 240 products", "Batch norm", "Addition"]
    assert rows[0][1] == "stages.2.1.project.0, 1 × 1 convolution"
    assert rows[2][1].startswith(f"{'−' if skip < 0 else '+'} {abs(float(skip)):.4g}")
    assert rows[-1][2] == value_messages.number(float(maps[5, 3, 4])) and rows[-1][2] in value_messages.title(step)
    found = step.arithmetic
    products = [each.input * each.weight for each in found.largest]
    assert found.total == pytest.approx(sum(products) + found.others) and found.inputs is None
    assert products == sorted(products, key=abs, reverse=True) and all(each.cell == (3, 4) for each in found.largest)
    packed = arithmetic_view.value(step)
    assert packed["products"][-1][0] == "230 others" and "difference of" in packed["check"]
    assert pickle.loads(pickle.dumps(step.arithmetic)).count == 240, "it may come from another process"


def test_kernels_of_the_first_layer_have_colors() -> None:
    weights = inputs()[0].stem[1].weight
    step = traced(12, (0, 3), layer="stem")
    found = step.arithmetic
    torch.testing.assert_close(found.kernels, weights)
    assert found.kernel == 12 and found.inputs.shape == (3, 3, 3)
    torch.testing.assert_close(found.weights, weights[12])
    packed = arithmetic_view.value(traced(12, (111, 111), layer="stem"))
    assert packed["kernels"]["shape"] == [32, 3, 3, 3]
    assert any(row[0].startswith(("red", "green", "blue")) for row in packed["products"])
    assert value_messages.rows(step)[-1][:2] == ["ReLU6", "limited to 0 to 6"]
    assert traced(3, (0, 0), layer="stages.2.0.depthwise").arithmetic.kernels is None


# Small images


def test_thumbnails_scales_each_channel_by_its_own_range() -> None:
    """By hand: 0 … 3 and -6 … 6 on a 2x2 grid; no reduction, as the grid is smaller than the cell.

    Of 32x32, cells of 2x2 are means: the left half is 2 of which every second row is 4.
    """
    features = torch.tensor([[[0.0, 1.0], [2.0, 3.0]], [[-6.0, 6.0], [0.0, -6.0]]])
    large = torch.zeros(1, 32, 32)
    large[0, 1::2, :16] = 4

    planes, low, high = thumbnails(features)
    means, least, most = thumbnails(large)

    assert planes.dtype == torch.uint8 and planes.tolist() == [[[0, 85], [170, 255]], [[0, 255], [128, 0]]]
    assert (low.tolist(), high.tolist()) == ([0, -6], [3, 6])
    assert means.shape == (1, 16, 16) and (least.item(), most.item()) == (0, 2)
    assert means[0, :, :8].unique().tolist() == [255] and means[0, :, 8:].unique().tolist() == [0]
    for shape, cell, expected in (((40, 20), 16, (16, 8)), ((112, 112), 8, (8, 8)), ((300, 1), 16, (16, 1))):
        assert thumbnails(torch.rand(1, *shape), cell)[0].shape[1:] == expected, "the proportions are kept"


def test_thumbnails_of_constant_and_nan_channels() -> None:
    """Constant: 0 with equal limits. Partly NaN: the rest keeps its range. All NaN: NaN limits."""
    features = torch.tensor([[[5.0, 5.0]], [[torch.nan, 2.0]], [[torch.nan, torch.inf]], [[0.0, 1e30]]])

    planes, low, high = thumbnails(features)

    assert planes.tolist() == [[[0, 0]], [[0, 0]], [[0, 0]], [[0, 255]]]
    assert low[:2].tolist() == high[:2].tolist() == [5, 2]
    assert low[2].isnan() and high[2].isnan()
