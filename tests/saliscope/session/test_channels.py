"""A layer's channels on the page: statistics, contributions to the class, gradients of a cell, receptive fields."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import explainers
from saliscope.errors import Refused
from saliscope.page.channels import view
from saliscope.session import model_cache
from saliscope.session.channels import engine as channels
from saliscope.session.channels import messages
from saliscope.session.channels.answers import (
    Channel,
    Contribution,
    InputGradient,
    Measures,
    ReceptiveFields,
    Sheet,
    Unchanged,
)
from saliscope.session.request import Request
from tests.saliscope.session.asking import CAT, MODEL, inputs, last_steps

REQUEST = Request(CAT, model=MODEL)


pytestmark = pytest.mark.usefixtures("loaded")


def steps(function: Any, request: Request | None = None, **more: Any) -> dict[type, Any]:
    return last_steps(request or REQUEST, function, **more)


def test_statistics_are_those_of_the_layer_values() -> None:
    """Oracle: the library's feature maps; Hoyer's sparsity of vectors where it is known."""
    sheet = steps(channels.sheet)[Sheet]
    maps = explainers.feature_maps(*inputs(), layer="head")[0]

    assert sheet.total == len(maps) == 1280 and sheet.pages == 1
    torch.testing.assert_close(sheet.means, maps.mean((1, 2)))
    torch.testing.assert_close(sheet.maps, maps[sheet.numbers])
    assert sheet.numbers[0] == int(maps.mean((1, 2)).argmax())
    assert sheet.dead.tolist() == [not bool(plane.any()) for plane in maps] and 0 < int(sheet.dead.sum()) < 1280
    assert sheet.sparsity.isnan().tolist() == sheet.dead.tolist()
    one, even = torch.zeros(1, 2, 2), torch.ones(1, 2, 2)
    one[0, 1, 1] = -3
    alive = torch.tensor([False])
    assert float(channels.sparsity(one, alive)) == pytest.approx(1) and float(channels.sparsity(even, alive)) == 0
    assert math.isnan(float(channels.sparsity(torch.ones(1, 1, 1), alive)))


def test_the_same_image_and_layer_are_not_sent_twice() -> None:
    sheet = steps(channels.sheet)[Sheet]

    again = steps(channels.sheet, known=sheet.ids.channels)
    other = steps(channels.sheet, Request(CAT, MODEL, target="goldfish"), known=sheet.ids.channels)

    assert Sheet not in again and again[Unchanged].ids == sheet.ids
    assert Sheet not in other and other[Unchanged].ids.target != sheet.ids.target
    assert Sheet in steps(channels.sheet, Request(CAT, layer="stages.2"), known=sheet.ids.channels)


def test_shares_are_gradient_times_activation_and_sum_to_hirescam() -> None:
    """Oracle: HiResCAM sums the same product over the channels; the effect of one channel is that of all measured."""
    request = Request(CAT, MODEL, layer="stages.2", target="tabby")
    label = model_cache.load("efficientnet_lite0").names.index("tabby")
    values = steps(channels.measure, request, kind="gradient")[Measures].values
    contribution = steps(channels.channel, request, number=3)[Contribution]
    cam = explainers.hires_cam(*inputs(), label, layer="stages.2", relu=False)
    effects = explainers.channel_effects(*inputs(), label, layer="stages.2")[0]

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
    early = Request(CAT, MODEL, layer="stages.2")
    gradient = steps(channels.channel, early, number=7)[InputGradient]
    at = steps(channels.channel, early, number=7, cell=(2, 3))
    expected = explainers.explain("saliency", *inputs(), explainers.unit("stages.2", 7, (2, 3))).map[0].abs()
    torch.testing.assert_close(at[InputGradient].map, expected)
    assert (
        Contribution not in at
        and not at[InputGradient].strongest
        and gradient.strongest
        and gradient.map.any()
        and gradient.before is None
    )
    left, top, right, bottom = gradient.window
    inside = gradient.map[top:bottom, left:right]
    assert inside.count_nonzero() == gradient.map.count_nonzero() and right - left < 0.6 * 224
    packed = view.input_gradient(gradient, 1)
    assert packed["map"]["h"] == bottom - top and all(-0.01 <= side <= 1.01 for side in packed["box"])

    saturated = int((explainers.feature_maps(*inputs(), layer="head")[0] == 6).any(2).any(1).nonzero()[0])
    dead = int(steps(channels.sheet)[Sheet].dead.nonzero()[0])
    for number, value, low, high in ((saturated, 6, 6, 100), (dead, 0, -100, 0)):
        found = steps(channels.channel, number=number)[InputGradient]
        before = explainers.unit("head.1", number, found.cell)
        torch.testing.assert_close(found.map, explainers.explain("saliency", *inputs(), before).map[0].abs())
        assert found.value == value and found.map.any() and low < found.before < high
        assert f"before the activation function, which sets {found.before:.3g}".replace(
            "-", "−"
        ) in messages.input_gradient(found)


def test_a_cell_that_no_pixel_changes_is_reported() -> None:
    found = steps(channels.channel, number=7)[InputGradient]
    none = replace(found, map=torch.zeros_like(found.map), before=None)
    assert "is zero" in messages.input_gradient(none) and "map" not in view.input_gradient(none, 1)


def test_receptive_fields_of_all_cells_equal_those_of_each_cell() -> None:
    """Oracle: `Layer.receptive_field`, cell by cell."""
    request = Request(CAT, MODEL, layer="stages.2")
    fields = steps(channels.channel, request, number=0)[ReceptiveFields]
    (layer,) = [each for each in explainers.list_layers(*inputs()) if each.name == "stages.2"]

    rows, columns = fields.spans
    for row, column in [(0, 0), (5, 11), (27, 3), (14, 14)]:
        box = columns[column][0], rows[row][0], columns[column][1], rows[row][1]
        assert [round(224 * side) for side in box] == list(layer.receptive_field((row, column)))


def test_unknown_channels_and_cells_raise() -> None:
    for number, cell in ((-1, None), (1280, None), (0, (7, 0)), (0, (0, -1))):
        with pytest.raises(Refused, match="has no channel|No cell at"):
            steps(channels.channel, number=number, cell=cell)


def test_large_layers_come_in_pages_and_large_grids_are_averaged(tmp_path: Path) -> None:
    """Responses stay below the size limit of the page."""
    assert channels.capacity(torch.empty(1, 7, 7)) == channels.MOST
    assert channels.capacity(torch.empty(1, 112, 112)) == 119
    assert channels.capacity(torch.empty(1, 224, 448)) == channels.capacity(torch.empty(1, 56, 112))
    sheet = steps(channels.sheet, Request(CAT, MODEL, layer="stages.0"), numbers=[5, 2])[Sheet]
    packed = view.sheet(sheet, "1", 1)
    assert sheet.numbers == [5, 2] and packed["cell"] == [112, 112] and "averaged" not in packed["note"]
    assert steps(channels.channel, Request(CAT, layer="stages.0"), number=2)[Channel].map.shape == (112, 112)


def test_a_channel_is_the_target() -> None:
    """Oracle: the library's own unit; a name that is not a channel stays an unknown class."""
    from saliscope.session import engine
    from saliscope.session import messages as page_messages
    from saliscope.session.answers import Answer, Stages

    name = "channel 12 of stages.2"
    found = steps(engine.explain, Request(CAT, MODEL, method="saliency", target=name))
    answer = found[Answer]
    expected = explainers.explain("saliency", *inputs(), explainers.unit("stages.2", 12), compare=False)

    torch.testing.assert_close(answer.map, expected.map[0])
    assert answer.name == name == answer.settings.names["target"] and answer.settings.target is None
    assert list(found[Stages].maps) == ["stem", "stages.0", "stages.1.0", "stages.1", "stages.2.0", "stages.2"], (
        "later blocks have no part in it"
    )
    line = "".join(part if isinstance(part, str) else part["text"] for part in page_messages.answer_parts(answer))
    assert line.startswith(f"Saliency for {name} of Eff")
    assert page_messages.unit(answer.settings).startswith("activation")
    for wrong in ("channel 40 of stages.2", "channel 1 of nowhere", "channel -1 of stages.2"):
        answer = steps(engine.explain, Request(CAT, MODEL, target=wrong))[Answer]
        assert answer.settings.unit is None and answer.settings.notes[0].startswith("Unknown class")
    contribution = steps(channels.channel, Request(CAT, MODEL, target=name), number=3)[Contribution]
    assert contribution.subject.name == "tiger cat" and "logit of tiger cat" in messages.contribution(contribution)[-1]
