"""Changes of the image and of channels: maps before and after, smallest regions, bundles, and several users at once."""

from __future__ import annotations

import copy
import io
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import explainers
from saliscope.compute import engine, model_cache, results_cache
from saliscope.compute.answers import Answer, Refining
from saliscope.compute.bundles import bundle, record
from saliscope.compute.erase import engine as erase
from saliscope.compute.erase import messages
from saliscope.compute.interventions import changes
from saliscope.compute.interventions import engine as interventions
from saliscope.compute.interventions import messages as change_messages
from saliscope.compute.interventions.answers import Changed
from saliscope.compute.request import Request, second_image
from saliscope.errors import Refused
from saliscope.page.channels import changing as change_view
from saliscope.page.components.view import floats
from saliscope.percentages import percent
from tests.saliscope.compute.asking import CAT, COFFEE, DOG, GOLDFISH, MEDIUM, SMALL, inputs, last_steps, steps_of

STROKE = "brush.5k.FFFFWWWW"

pytestmark = pytest.mark.usefixtures("loaded")


def ask(edit: str = "", search: str = "", first: bool = False, **settings: Any) -> Any:
    """Return the last step of an answer, or the first one with predictions."""
    request = Request(**{"image": DOG, "model": MEDIUM, **settings}, edit=edit, use_cache=True)
    found = [step for step in steps_of(erase.answers, request, search) if isinstance(step, erase.Erased)]
    return found[0 if first else -1]


def test_the_edited_map_is_the_map_of_the_edited_image() -> None:
    """Oracle: the fill on the input of the network, and the method on the result."""
    (network, images), (_, second) = (inputs(path, MEDIUM) for path in (DOG, COFFEE))
    for fill, cover in (("mean", images.mean((2, 3), keepdim=True)), ("image", second)):
        found = ask(f"{STROKE}_fill.{fill}", second=COFFEE)
        edited = torch.where(found.mask, cover, images)
        expected = explainers.explain("grad_cam", network, edited, found.before.target, layer="head")
        assert 0.02 < found.mask.float().mean() < 0.2
        assert torch.equal(found.after.map, expected.map[0]) and not torch.equal(found.after.map, found.before.map)
        assert expected.scores is not None
        assert torch.allclose(found.after.probabilities, expected.scores[0].softmax(0))
        assert found.after.target == found.before.target, "the class of the question, even if another one is predicted"
    again = Request(DOG, MEDIUM, edit=found.edit, target=found.before.name, second=COFFEE)
    assert found.before.map.equal(last_steps(Request(DOG, MEDIUM), stages=False)[Answer].map)
    assert found.after.map.equal(last_steps(again, erase.explain, stages=False)[Answer].map), "as a replay computes it"


def test_the_whole_image_is_changed_as_the_network_receives_it() -> None:
    """Oracle: the changes on the 8-bit crop in Pillow, normalized by hand."""
    found = ask("flip.x_rotate.90_jpeg.30")
    images, preparation = inputs(DOG, MEDIUM)[1], model_cache.load(MEDIUM).model.preparation
    mean, std = (torch.tensor(values)[:, None, None] for values in (preparation.mean, preparation.std))
    pixels = ((images * std + mean) * 255).round().byte()[0].permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels).transpose(Image.Transpose.FLIP_LEFT_RIGHT).transpose(Image.Transpose.ROTATE_90)
    image.save(buffer := io.BytesIO(), "JPEG", quality=30)
    assert found.after.crop.tobytes() == Image.open(buffer).convert("RGB").tobytes()
    assert found.mask is not None and not found.mask.any()


def test_the_smallest_region_is_that_of_the_library() -> None:
    """Only for the predicted class, and for fills that do not depend on the region."""
    for goal in erase.GOALS:
        found = ask("fill.mean", goal, model=SMALL)
        options = {"goal": goal, "baseline": "mean"}
        oracle = explainers.smallest_region(*inputs(DOG, SMALL), found.before.map[None], **options)
        assert torch.equal(found.mask, oracle.mask[0] if goal == "change" else ~oracle.mask[0])
        assert f"({oracle.passes} forward passes)" in found.note
        assert torch.allclose(found.after.probabilities, oracle.scores[0].softmax(0), atol=1e-6)
        assert (int(found.after.probabilities.argmax()) == found.before.target) == (goal != "change")
        if goal == "half":
            before, after = (each.probabilities[found.before.target] for each in (found.before, found.after))
            assert before / 2 <= after < 0.9 * before and "keep the class and half of its probability" in found.note
        assert torch.equal(ask(found.edit, model=SMALL).after.map, found.after.map), "the edit repeats it"
    with pytest.raises(Refused, match="that of the predicted class, German shepherd, but the map is for malinois"):
        ask("", "keep", target="malinois")
    with pytest.raises(Refused, match="Choose another fill"):
        ask("fill.inpaint", "keep")


def test_what_cannot_be_edited_says_why() -> None:
    for edit, image, message in (
        ("brush.0c.0000_unbox.0000zzzz", DOG, "region is empty"),
        ("invert_fill.image", DOG, "No second image"),
        ("invert", None, "no map to start from"),
    ):
        with pytest.raises(Refused, match=message):
            ask(edit, image=image)
    for second in ({"example": "nothing"}, {"file": "/etc/passwd"}):
        with pytest.raises(Refused):
            second_image(second)
    assert second_image({"example": "coffee"}) == COFFEE and second_image(None) is None


def test_a_slow_method_shows_scores_first_and_is_cached() -> None:
    """The scores of the edited image arrive with the first step; a repeated edit is not computed again."""
    settings = {"model": SMALL, "method": "occlusion", "options": {"window": 32, "stride": 16}}
    started, again = (ask(STROKE, first=True, **settings).after for _ in range(2))
    assert isinstance(started, Refining) and started.probabilities is not None and isinstance(again, Answer)


def test_listed_changes_are_those_of_both_top_five() -> None:
    found = ask("top.300")
    rows = erase.changes(found.before, found.after)
    classes = [index for index, _, _ in rows]
    assert set(classes) == {index for index, _ in (*found.after.top, *found.before.top)}
    for index, before, after in rows:
        assert (before, after) == (float(found.before.probabilities[index]), float(found.after.probabilities[index]))
    assert [after for *_, after in rows] == sorted((after for *_, after in rows), reverse=True)
    assert messages.change(0.94, 0.785, True) == "−15.5 pp" and messages.value(0.0004, True) == "<0.1%"


def test_sentences_about_an_edit_name_the_class_and_the_probability_kept() -> None:
    """The large headline is the prediction after the edit; "the same" names the class that it means."""
    kept = ask("top.200", model="efficientnet_lite0")
    before, after = kept.before, kept.after
    first, second = messages.headline(before, after)
    names, (top, share) = before.settings.loaded.names, after.top[0]
    assert first == f"After the edit: {names[top]}, {percent(share)}."
    fraction = float(after.probabilities[before.target]) / float(before.probabilities[before.target])
    assert "94% before" in second and second.endswith(f"; {percent(fraction)} of its probability is kept.")
    assert messages.result(before, after).endswith("The prediction is still German shepherd.")
    risen = ask("invert_fill.blur_brightness.5", model="efficientnet_lite0")
    assert "kept" not in messages.headline(risen.after, risen.before)[1], "nothing was lost"


def test_a_bundle_repeats_the_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of an edited map, as the page saves it, gives the same map again, to the bit."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    dog, coffee = (str(shutil.copy(path, tmp_path)) for path in (DOG, COFFEE))
    for edit, second in (("top.200_fill.noise_noise.5", None), (f"{STROKE}_fill.image", coffee)):
        after = ask(edit, image=dog, second=second).after
        stored = record.record(after, floats(after.map))
        part = bundle.server_part([stored], dog, tmp_path, second)
        again = last_steps(bundle.request(stored["question"], dog, second), erase.explain, stages=False)[Answer]
        assert torch.equal(again.map, after.map) and ("second_upload" in part) == bool(second)
        for image, other in ((coffee, second), *([(dog, dog)] if second else [])):
            with pytest.raises(Refused, match="image has changed"):
                bundle.server_part([stored], image, tmp_path, other)


def test_keys_tell_edits_apart() -> None:
    """Otherwise one edit would get the cached map of another one."""
    settings = engine.resolve(Request(DOG))
    edits = [("", None), ("invert", None), *(("invert_fill.image", path) for path in (COFFEE, DOG))]
    requests = [Request(DOG, edit=edit, second=second) for edit, second in edits]
    for key in (results_cache.key, results_cache.subject):
        assert len({key(settings, request) for request in requests}) == 4


REQUEST = Request(CAT, layer="stages.5", use_cache=True)
SOME = "3, 17-24"
NUMBERS = [3, *range(17, 25)]


def answers(data: dict[str, Any], request: Request = REQUEST) -> list[Changed]:
    steps = steps_of(interventions.intervene, request, changes.parse({"channels": SOME} | data))
    return [step for step in steps if isinstance(step, Changed)]


CHANGES: list[tuple[dict[str, Any], Any, str]] = [
    ({"kind": "scale", "numbers": {"factor": "−2"}}, lambda a: -2 * a, "multiplied by −2"),
    ({"kind": "clamp", "numbers": {"low": "-0.5", "high": "1"}}, lambda a: a.clamp(-0.5, 1), "limited to −0.5 to 1"),
    ({"kind": "clamp", "numbers": {"low": "", "high": "0"}}, lambda a: a.clamp(max=0), "limited to at most 0"),
    ({"kind": "mean"}, lambda a: a.mean((2, 3), keepdim=True).expand_as(a), "replaced by the mean over all positions"),
    ({"kind": "noise", "numbers": {"std": "0.5"}}, explainers.AddNoise(0.5), "with noise of 0.5 standard deviations"),
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
    network, images = inputs(CAT, SMALL)
    top, before = int(network(images).argmax()), network(images).softmax(1)[0]
    before_map = explainers.grad_cam(network, images, top, layer="stages.5")[0]
    names = model_cache.load(SMALL).names
    for data, change, words in CHANGES:
        (step,) = answers(data, replace(REQUEST, model=SMALL))
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
        assert step.place.channels == NUMBERS and change_messages.title(step).startswith("9 channels of stages.5 ")
        assert words in change_messages.title(step)
        packed = change_view.changed(step)
        assert packed["classes"][0]["texts"][0] == names[top] and len(packed["maps"]) == 2


def test_a_swap_and_its_positions() -> None:
    """Oracle: the library's activation patching; all channels of the last layer swapped are the other image."""
    (network, images), (_, other) = (inputs(path, MEDIUM) for path in (CAT, GOLDFISH))
    request = replace(REQUEST, model=MEDIUM)
    swap = {"kind": "swap", "second": {"example": "goldfish"}, "positions": True}
    (whole,) = answers(swap | {"channels": "0-191", "positions": False}, request)
    assert max(whole.classes, key=lambda each: each.after).name == "goldfish"
    top = int(network(images).argmax())
    (every,) = answers(swap, request)
    expected = explainers.patch_effects(network, images, other, top, layer="stages.5", channels=NUMBERS)[0]
    torch.testing.assert_close(every.effects, expected)
    assert every.shown_cell == divmod(int(expected.abs().argmax()), 4) == every.place.cell
    (one,) = answers(swap | {"cell": [2, 3]}, request)
    options = {"channels": NUMBERS, "cells": [(2, 3)], "value": explainers.Swap(other)}
    result = explainers.intervene(network, images, "stages.5", **options)
    assert one.effects is None
    assert one.classes[0].after == pytest.approx(float(result.after.softmax(1)[0, top]), rel=1e-4)
    assert "at row 3, column 4" in change_messages.title(one)
    assert change_view.changed(every)["effects"]["title"] == "Change of the logit of Egyptian cat by position"
    with pytest.raises(Refused, match="No cell at row 5"):
        answers(swap | {"cell": [4, 0]}, request)


def test_a_long_method_shows_the_classes_before_its_maps() -> None:
    """Long methods may run faster copies of the network. Oracle: a copy that is followed by the change."""
    network, images = inputs(CAT, SMALL)
    options = {"window": 32, "stride": 16}
    request = replace(REQUEST, model=SMALL, method="occlusion", options=options, target="tabby")
    first, last = answers({"kind": "zeros"}, request)

    assert first.maps is None and first.classes == last.classes and last.subject == "tabby"
    changed = copy.deepcopy(network)
    changed.stages[5] = torch.nn.Sequential(changed.stages[5], Edited(torch.zeros_like))
    for net, found in ((network, last.maps.before), (changed, last.maps.after)):
        torch.testing.assert_close(found, explainers.explain("occlusion", net, images, 281, **options).map[0])
    assert not torch.allclose(last.maps.before, last.maps.after)


def test_two_users_at_once_do_not_affect_each_other() -> None:
    """One user changes all channels while another one explains, also without a queue: both get what they get alone."""
    network, images = inputs()
    work = [
        lambda: last_steps(replace(REQUEST, use_cache=False), stages=False)[Answer].map,
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
    ({"channels": "3, 5-2"}, "“5-2” is not a channel or a range"),
    ({"channels": "190-192"}, "Layer stages.5 has no channel 192. Choose a channel from 0 to 191"),
    ({"channels": 3}, "The change is not valid"),
    ({"kind": "explode"}, "The change is not valid"),
    ({"kind": "scale"}, "The factor is missing. Enter a number from −1000 to 1000"),
    ({"kind": "scale", "numbers": {"factor": "nan"}}, "“nan” is not a valid factor"),
    ({"kind": "noise", "numbers": {"std": "-1"}}, "Enter a number from 0 to 100"),
    ({"kind": "clamp", "numbers": {}}, "Both limits are empty"),
    ({"kind": "clamp", "numbers": {"low": "2", "high": "-1"}}, "The lower limit 2 is above the upper limit −1"),
    ({"kind": "swap"}, "No second image"),
    ({"kind": "swap", "second": {"file": "/etc/passwd"}}, "Only images that were uploaded"),
]


@pytest.mark.usefixtures("blob_models")
def test_wrong_input_is_refused(blobs: str) -> None:
    for data, message in WRONG:
        with pytest.raises(Refused, match=re.escape(message)):
            answers({"kind": "zeros", **data})
    with pytest.raises(Refused, match="returns objects or regions"):
        answers({"kind": "zeros"}, Request(blobs, model="blobs_detection"))
