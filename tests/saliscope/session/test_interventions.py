"""Changes of channels on the page: classes and maps before and after, wrong input, and several users at once."""

from __future__ import annotations

import copy
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import explainers
from saliscope.errors import Refused
from saliscope.page.channels import change_view
from saliscope.session import model_cache
from saliscope.session.interventions import changes, engine, messages
from saliscope.session.interventions.answers import Changed
from saliscope.session.request import Request
from tests.saliscope.session.asking import CAT, GOLDFISH, MODEL, answered, inputs, steps_of

REQUEST = Request(CAT, MODEL, layer="stages.5", use_cache=True)
SOME = "3, 17-24"
NUMBERS = [3, *range(17, 25)]


pytestmark = pytest.mark.usefixtures("loaded")


def answers(data: dict[str, Any], request: Request = REQUEST) -> list[Changed]:
    steps = steps_of(engine.intervene, request, changes.parse({"channels": SOME} | data))
    return [step for step in steps if isinstance(step, Changed)]


CHANGES: list[tuple[dict[str, Any], Any]] = [
    ({"kind": "scale", "numbers": {"factor": "−2"}}, lambda a: -2 * a),
    ({"kind": "clamp", "numbers": {"low": "-0.5", "high": "1"}}, lambda a: a.clamp(-0.5, 1)),
    ({"kind": "clamp", "numbers": {"low": "", "high": "0"}}, lambda a: a.clamp(max=0)),
    ({"kind": "mean"}, lambda a: a.mean((2, 3), keepdim=True).expand_as(a)),
    ({"kind": "noise", "numbers": {"std": "0.5"}}, explainers.AddNoise(0.5)),
]


class Edited(torch.nn.Module):
    """The change of some channels as a module."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        found = self.change(output[:, NUMBERS])
        return torch.cat([output[:, :3], found[:, :1], output[:, 4:17], found[:, 1:], output[:, 25:]], 1)


def test_classes_and_maps_are_those_of_a_changed_network() -> None:
    """Oracle: a copy of the network whose layer is followed by a module that makes the change."""
    network, images = inputs()
    top, before = int(network(images).argmax()), network(images).softmax(1)[0]
    before_map = explainers.grad_cam(network, images, top, layer="stages.5")[0]
    names = model_cache.load(MODEL).names
    for data, change in CHANGES:
        (step,) = answers(data)
        changed = copy.deepcopy(network)
        changed.stages[5] = torch.nn.Sequential(changed.stages[5], Edited(change))
        after_map = explainers.grad_cam(changed, images, top, layer="stages.5")[0]
        torch.testing.assert_close(step.maps.after, after_map, msg=str(data))
        torch.testing.assert_close(step.maps.before, before_map)
        after = changed(images).softmax(1)[0]
        expected = dict.fromkeys([*before.topk(5).indices.tolist(), *after.topk(5).indices.tolist()])
        assert [each.name for each in step.classes] == [names[index] for index in expected]
        for each, index in zip(step.classes, expected, strict=True):
            assert each.before == pytest.approx(float(before[index]), rel=1e-4)
            assert each.after == pytest.approx(float(after[index]), rel=1e-3), data
        assert step.place.channels == NUMBERS and messages.title(step).startswith("9 channels of stages.5 ")
        packed = change_view.changed(step)
        assert packed["classes"][0]["texts"][0] == "tiger cat" and len(packed["maps"]) == 2


def test_a_swap_and_its_positions() -> None:
    """Oracle: the library's activation patching; all channels of the last layer swapped are the other image."""
    network, images = inputs()
    _, other = inputs(GOLDFISH)
    (whole,) = answers({"kind": "swap", "second": {"example": "goldfish"}, "channels": "0-191"})
    assert max(whole.classes, key=lambda each: each.after).name == "goldfish"
    top = int(network(images).argmax())

    swap = {"kind": "swap", "second": {"example": "goldfish"}, "positions": True}
    (every,) = answers(swap)
    expected = explainers.patch_effects(network, images, other, top, layer="stages.5", channels=NUMBERS)[0]
    torch.testing.assert_close(every.effects, expected)
    assert every.shown_cell == divmod(int(expected.abs().argmax()), 7) == every.place.cell
    (one,) = answers(swap | {"cell": [2, 5]})
    result = explainers.intervene(
        network, images, "stages.5", channels=NUMBERS, cells=[(2, 5)], value=explainers.Swap(other)
    )
    assert one.effects is None and one.place.cell == (2, 5)
    assert one.classes[0].after == pytest.approx(float(result.after.softmax(1)[0, top]), rel=1e-4)
    assert "at row 3, column 6" in messages.title(one)
    assert change_view.changed(every)["effects"]["title"] == "Change of the logit of tiger cat by position"
    with pytest.raises(Refused, match="No cell at row 8"):
        answers(swap | {"cell": [7, 0]})


def test_a_long_method_shows_the_classes_before_its_maps() -> None:
    """Oracle: the method on the network inside `applied`."""
    network, images = inputs()
    request = replace(REQUEST, method="occlusion", options={"window": 96, "stride": 64}, target="tabby")
    first, last = answers({"kind": "zeros"}, request)

    assert first.maps is None and first.classes == last.classes and last.subject == "tabby"
    options = {"target": 281, "window": 96, "stride": 64}
    result = explainers.intervene(network, images, "stages.5", channels=NUMBERS)
    with result.applied(network):
        torch.testing.assert_close(last.maps.after, explainers.explain("occlusion", network, images, **options).map[0])
    torch.testing.assert_close(last.maps.before, explainers.explain("occlusion", network, images, **options).map[0])
    assert not torch.allclose(last.maps.before, last.maps.after)


def test_slow_methods_run_on_the_changed_network() -> None:
    """They may run faster copies of the network. Oracle: a network whose weights make the same change."""
    network, images = inputs()
    changed = copy.deepcopy(network)
    norm = changed.stages[5][0].project[1]
    norm.weight.data[NUMBERS] = norm.bias.data[NUMBERS] = 0
    for method, options in (("rise", {"samples": 4}), ("score_cam", {"channels": 4, "layer": "head"})):
        with explainers.intervene(network, images, "stages.5.0.project", channels=NUMBERS).applied(network):
            found = explainers.explain(method, network, images, 281, **options).raw
        torch.testing.assert_close(found, explainers.explain(method, changed, images, 281, **options).raw, msg=method)
        assert not torch.allclose(found, explainers.explain(method, network, images, 281, **options).raw), method


def test_two_users_at_once_do_not_affect_each_other() -> None:
    """One user changes all channels while another one explains, also without a queue: both get what they get alone."""
    network, images = inputs()
    work = [
        lambda: answered(replace(REQUEST, use_cache=False)).map,
        lambda: answers({"kind": "zeros", "channels": "0-191"})[-1].maps.after,
        lambda: network(images),
    ]
    alone = [each() for each in work]
    assert not torch.allclose(alone[0], alone[1])
    with ThreadPoolExecutor(3) as threads:
        for expected, found in zip(alone, threads.map(lambda each: [each() for _ in range(3)], work), strict=True):
            assert all(torch.allclose(each, expected) for each in found)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"channels": ""}, "No channel is selected"),
    ({"channels": "3, x"}, "“x” is not a channel or a range"),
    ({"channels": "5-2"}, "“5-2” is not a channel or a range"),
    ({"channels": "190-192"}, "Layer stages.5 has no channel 192. Choose a channel from 0 to 191"),
    ({"channels": 3}, "The change is not valid"),
    ({"kind": "explode"}, "The change is not valid"),
    ({"kind": "scale"}, "The factor is missing. Enter a number from −1000 to 1000"),
    ({"kind": "scale", "numbers": {"factor": "1e9"}}, "“1e9” is not a valid factor"),
    ({"kind": "scale", "numbers": {"factor": "nan"}}, "“nan” is not a valid factor"),
    ({"kind": "noise", "numbers": {"std": "-1"}}, "Enter a number from 0 to 100"),
    ({"kind": "clamp", "numbers": {}}, "Both limits are empty"),
    ({"kind": "clamp", "numbers": {"low": "2", "high": "-1"}}, "The lower limit 2 is above the upper limit −1"),
    ({"kind": "swap"}, "No second image"),
    ({"kind": "swap", "second": {"file": "/etc/passwd"}}, "Only images that were uploaded"),
]


def test_wrong_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message in WRONG:
        with pytest.raises(Refused, match=re.escape(message)):
            answers({"kind": "zeros", **data})

    load_input, known = engine.engine.load_input, engine.engine.resolve(REQUEST)

    def load_smaller(settings: Any, request: Request) -> Any:
        settings, image, images = load_input(settings, request)
        return settings, image, images[..., :96] if "goldfish" in str(request.image) else images

    monkeypatch.setattr(engine.engine, "load_input", load_smaller)
    with pytest.raises(Refused, match="224 × 96 pixels, but the explained image has 224 × 224"):
        answers({"kind": "swap", "second": {"example": "goldfish"}})
    for other, message in (
        (replace(known.loaded, layers=[]), "No layer of this network has cells"),
        (replace(known.loaded, model=replace(known.loaded.model, task="detection")), "returns objects or regions"),
    ):
        monkeypatch.setattr(engine.engine, "resolve", lambda *_, other=other: replace(known, loaded=other))
        with pytest.raises(Refused, match=message):
            answers({"kind": "zeros"})
