"""The erase view without a page: edited images, smallest regions, and bundles."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import explainers
from saliscope.errors import Refused
from saliscope.page.components.view import floats
from saliscope.percentages import percent
from saliscope.session import engine, results_cache
from saliscope.session.answers import Answer, Refining
from saliscope.session.bundles import bundle, record
from saliscope.session.erase import engine as erase
from saliscope.session.erase import messages
from saliscope.session.erase.second import second_image
from saliscope.session.jobs.runs import Run
from saliscope.session.request import Request
from tests.saliscope.session.asking import COFFEE, DOG, last_steps, steps_of

STROKE = "brush.5k.FFFFWWWW"

pytestmark = pytest.mark.usefixtures("loaded")


def ask_all(edit: str = "", search: str = "", **settings: Any) -> list[erase.Erased]:
    request = Request(**{"image": DOG, **settings}, edit=edit, use_cache=True)
    return [step for step in steps_of(erase.answers, request, search) if isinstance(step, erase.Erased)]


def ask(edit: str = "", search: str = "", **settings: Any) -> Any:
    """Return the last step of an answer."""
    return ask_all(edit, search, **settings)[-1]


def plain(edit: str = "", **settings: Any) -> Answer:
    """Return the answer that a replay computes."""
    found: Answer = last_steps(Request(**{"image": DOG, **settings}, edit=edit), erase.explain, stages=False)[Answer]
    return found


def test_the_edited_map_is_the_map_of_the_edited_image(loaded: Any) -> None:
    """Oracle: the fill on the input of the network, and the method on the result."""
    images, second = (loaded.model.prepare(Image.open(path)) for path in (DOG, COFFEE))
    for fill, cover in (("mean", images.mean((2, 3), keepdim=True)), ("image", second)):
        found = ask(f"{STROKE}_fill.{fill}", second=COFFEE)
        edited = torch.where(found.mask, cover, images)
        expected = explainers.explain("grad_cam", loaded.model.network, edited, found.before.target, layer="head")
        assert 0.02 < found.mask.float().mean() < 0.2
        assert torch.equal(found.after.map, expected.map[0]) and not torch.equal(found.after.map, found.before.map)
        assert expected.scores is not None
        assert torch.allclose(found.after.probabilities, expected.scores[0].softmax(0))
        assert found.after.target == found.before.target, "the class of the question, even if another one is predicted"
    assert found.before.map.equal(plain().map)
    assert found.after.map.equal(plain(found.edit, target=found.before.name, second=COFFEE).map)


def test_the_whole_image_is_changed_as_the_network_receives_it(loaded: Any) -> None:
    """Oracle: the changes on the 8-bit crop in Pillow, normalized by hand."""
    found = ask("flip.x_rotate.90_jpeg.30")
    images, preparation = loaded.model.prepare(Image.open(DOG)), loaded.model.preparation
    mean, std = (torch.tensor(values)[:, None, None] for values in (preparation.mean, preparation.std))
    pixels = ((images * std + mean) * 255).round().byte()[0].permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels).transpose(Image.Transpose.FLIP_LEFT_RIGHT).transpose(Image.Transpose.ROTATE_90)
    image.save(buffer := io.BytesIO(), "JPEG", quality=30)
    assert found.after.crop.tobytes() == Image.open(buffer).convert("RGB").tobytes()
    assert found.mask is not None and not found.mask.any()


def test_the_smallest_region_is_that_of_the_library(loaded: Any) -> None:
    """Only for the predicted class, and for fills that do not depend on the region."""
    for goal in erase.GOALS:
        found = ask("fill.mean", goal)
        options = {"goal": goal, "baseline": "mean"}
        images = loaded.model.prepare(Image.open(DOG))
        oracle = explainers.smallest_region(loaded.model.network, images, found.before.map[None], **options)
        assert torch.equal(found.mask, oracle.mask[0] if goal == "change" else ~oracle.mask[0])
        assert f"({oracle.passes} forward passes)" in found.note
        assert torch.allclose(found.after.probabilities, oracle.scores[0].softmax(0), atol=1e-6)
        assert (int(found.after.probabilities.argmax()) == found.before.target) == (goal != "change")
        if goal == "half":
            before, after = (each.probabilities[found.before.target] for each in (found.before, found.after))
            assert before / 2 <= after < 0.9 * before and "keep the class and half of its probability" in found.note
        assert torch.equal(ask(found.edit).after.map, found.after.map), "the edit repeats it"
    with pytest.raises(Refused, match="that of the predicted class, German shepherd, but the map is for malinois"):
        ask("", "keep", target="malinois")
    with pytest.raises(Refused, match="Choose another fill"):
        ask("fill.inpaint", "keep")


def test_what_cannot_be_edited_says_why() -> None:
    for edit, message in (
        ("invert_invert", "region is empty"),
        ("brush.0c.0000_unbox.0000zzzz", "region is empty"),
        ("rotate.999", "Rotation 999 is out of range"),
        ("shift.224.0", "Give -223 to 223 pixels"),
        ("invert_fill.image", "No second image"),
        ("invert_fill.inpaint", "no pixel is left"),
    ):
        with pytest.raises(Refused, match=message):
            ask(edit)
    with pytest.raises(Refused, match="no second image"):
        second_image({"example": "nothing"})
    with pytest.raises(Refused):
        second_image({"file": "/etc/passwd"})
    assert second_image({"example": "coffee"}) == COFFEE and second_image(None) is None
    with pytest.raises(AssertionError):  # an edit never gets lost on the way to the network
        [*engine.explain(Request(DOG, edit="invert"), Run(60.0))]


def test_a_slow_method_shows_scores_first_and_is_cached() -> None:
    """The scores of the edited image arrive with the first step; a repeated edit is not computed again."""
    settings = {"method": "occlusion", "options": {"window": 96, "stride": 64}}
    (first, *_, last), (again,) = ask_all(STROKE, **settings), ask_all(STROKE, **settings)
    assert isinstance(first.after, Refining) and first.after.probabilities is not None
    assert isinstance(last.after, Answer) and torch.equal(again.after.map, last.after.map)  # type: ignore[union-attr, arg-type]


def test_listed_changes_are_those_of_both_top_five() -> None:
    found = ask("top.300")
    rows = erase.changes(found.before, found.after)
    classes = [index for index, _, _ in rows]
    assert set(classes) == {index for index, _ in (*found.after.top, *found.before.top)}
    assert classes[:5] == [index for index, _ in found.after.top]
    for index, before, after in rows:
        assert (before, after) == (float(found.before.probabilities[index]), float(found.after.probabilities[index]))
    assert [after for *_, after in rows] == sorted((after for *_, after in rows), reverse=True)
    assert messages.change(0.94, 0.785, True) == "−15.5 pp" and messages.change(0.0001, 0.0007, True) == "+0.1 pp"
    assert messages.change(0.5, 0.5, True) == "0 pp" and messages.value(0.0004, True) == "<0.1%"


def test_sentences_about_an_edit_name_the_class_and_the_probability_kept() -> None:
    """The large headline is the prediction after the edit; "the same" names the class that it means."""
    kept, lost = ask("top.200"), ask("top.500_fill.mean")
    for found in (kept, lost):
        before, after = found.before, found.after
        first, second = messages.headline(before, after)
        names, (top, share) = before.settings.loaded.names, after.top[0]
        assert first == f"After the edit: {names[top]}, {percent(share)}."
        fraction = float(after.probabilities[before.target]) / float(before.probabilities[before.target])
        assert "94% before" in second and second.endswith(f"; {percent(fraction)} of its probability is kept.")
    assert messages.result(kept.before, kept.after).endswith("The prediction is still German shepherd.")
    assert "The prediction is the same" not in messages.result(lost.before, lost.after)
    risen = ask("invert_fill.blur_brightness.5")
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
        assert torch.equal(again.map, after.map)
        assert stored["question"]["edit"] == edit and ("second_upload" in part) == bool(second)
        for image, other in ((coffee, second), *([(dog, dog)] if second else [])):
            with pytest.raises(Refused, match="image has changed"):
                bundle.server_part([stored], image, tmp_path, other)


def test_keys_tell_edits_apart() -> None:
    """Otherwise one edit would get the cached map of another one."""
    settings = engine.resolve(Request(DOG))
    edits = [("", None), ("invert", None), ("flip.x", None), *(("invert_fill.image", path) for path in (COFFEE, DOG))]
    requests = [Request(DOG, edit=edit, second=second) for edit, second in edits]
    for key in (results_cache.key, results_cache.subject):
        assert len({key(settings, request) for request in requests}) == 5
    assert len({request.signature for request in requests}) == 5
