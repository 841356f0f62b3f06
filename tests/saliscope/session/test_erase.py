"""The erase view without a page: edited images, smallest regions, bundles, and two users at once."""

from __future__ import annotations

import io
import shutil
from concurrent.futures import ThreadPoolExecutor
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
from saliscope.session.bundles import bundle, record, replay
from saliscope.session.bundles.reading import Map
from saliscope.session.erase import engine as erase
from saliscope.session.erase import messages
from saliscope.session.erase.second import second_image
from saliscope.session.jobs import runs
from saliscope.session.jobs.runs import Run
from saliscope.session.request import Request
from tests.saliscope.session.asking import COFFEE, DOG

STROKE = "brush.5k.FFFFWWWW"


pytestmark = pytest.mark.usefixtures("loaded")


def ask(edit: str = "", search: str = "", **settings: Any) -> erase.Erased:
    """Return the last step of an answer."""
    request = Request(**{"image": DOG, **settings}, edit=edit, use_cache=True)
    found = [step for step in erase.answers(request, search, Run(60.0)) if isinstance(step, erase.Erased)]
    return found[-1]


def plain(edit: str = "", **settings: Any) -> Answer:
    """Return the answer that a replay computes."""
    steps = [*erase.explain(Request(**{"image": DOG, **settings}, edit=edit), Run(60.0), stages=False)]
    return next(step for step in reversed(steps) if isinstance(step, Answer))


def test_the_edited_map_is_the_map_of_the_edited_image(loaded: Any) -> None:
    """Oracle: the fill on the input of the network, and the method on the result."""
    found = ask(f"{STROKE}_fill.mean")
    assert isinstance(found.after, Answer) and found.mask is not None
    images = loaded.model.prepare(Image.open(DOG))
    edited = torch.where(found.mask, images.mean((2, 3), keepdim=True), images)
    expected = explainers.explain("grad_cam", loaded.model.network, edited, found.before.target, layer="head")

    assert 0.02 < found.mask.float().mean() < 0.2
    assert torch.equal(found.after.map, expected.map[0]) and not torch.equal(found.after.map, found.before.map)
    assert found.after.probabilities is not None and expected.scores is not None
    assert torch.allclose(found.after.probabilities, expected.scores[0].softmax(0))
    assert found.after.target == found.before.target, "the class of the question, even if another one is predicted now"
    assert found.before.map.equal(plain().map) and found.after.map.equal(
        plain(found.edit, target=found.before.name).map
    )


def test_the_whole_image_is_changed_as_the_network_receives_it(loaded: Any) -> None:
    """Oracle: the changes on the 8-bit crop in Pillow, normalized by hand."""
    found = ask("flip.x_rotate.90_jpeg.30")
    assert isinstance(found.after, Answer)
    images = loaded.model.prepare(Image.open(DOG))
    preparation = loaded.model.preparation
    mean, std = (torch.tensor(values)[:, None, None] for values in (preparation.mean, preparation.std))
    pixels = ((images * std + mean) * 255).round().byte()[0].permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels).transpose(Image.Transpose.FLIP_LEFT_RIGHT).transpose(Image.Transpose.ROTATE_90)
    image.save(buffer := io.BytesIO(), "JPEG", quality=30)

    assert found.after.crop.tobytes() == Image.open(buffer).convert("RGB").tobytes()
    assert found.mask is not None and not found.mask.any()


@pytest.mark.parametrize("goal", erase.GOALS)
def test_the_smallest_region_is_that_of_the_library(goal: str, loaded: Any) -> None:
    found = ask("fill.mean", goal)
    images = loaded.model.prepare(Image.open(DOG))
    oracle = explainers.smallest_region(
        loaded.model.network, images, found.before.map[None], goal=goal, baseline="mean"
    )
    assert isinstance(found.after, Answer) and found.mask is not None and found.after.probabilities is not None
    erased = oracle.mask[0] if goal == "change" else ~oracle.mask[0]

    assert torch.equal(found.mask, erased) and f"({oracle.passes} forward passes)" in found.note
    assert torch.allclose(found.after.probabilities, oracle.scores[0].softmax(0), atol=1e-6)
    kept = int(found.after.probabilities.argmax()) == found.before.target
    assert kept == (goal != "change")
    if goal == "half":
        before, after = (each.probabilities[found.before.target] for each in (found.before, found.after))
        assert before / 2 <= after < 0.9 * before and "keep the class and half of its probability" in found.note
    assert torch.equal(ask(found.edit).after.map, found.after.map), "the edit repeats it"  # type: ignore[union-attr]


def test_a_class_that_is_not_predicted_has_no_smallest_region() -> None:
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


def test_a_second_image_fills_the_region(loaded: Any) -> None:
    found = ask(f"{STROKE}_fill.image", second=COFFEE)
    assert isinstance(found.after, Answer) and found.mask is not None
    images, second = (loaded.model.prepare(Image.open(path)) for path in (DOG, COFFEE))
    expected = explainers.explain(
        "grad_cam", loaded.model.network, torch.where(found.mask, second, images), found.before.target, layer="head"
    )

    assert torch.equal(found.after.map, expected.map[0])


def test_a_slow_method_shows_scores_first_and_is_cached() -> None:
    """The scores of the edited image arrive with the first step; a repeated edit is not computed again."""
    settings = {"method": "occlusion", "options": {"window": 64, "stride": 48}}
    request = Request(DOG, **settings, edit=STROKE, use_cache=True)  # type: ignore[arg-type]
    steps = [step for step in erase.answers(request, "", Run(60.0)) if isinstance(step, erase.Erased)]
    again = [step for step in erase.answers(request, "", Run(60.0)) if isinstance(step, erase.Erased)]

    assert isinstance(steps[0].after, Refining) and steps[0].after.probabilities is not None
    assert isinstance(steps[-1].after, Answer) and len(again) == 1
    assert torch.equal(again[0].after.map, steps[-1].after.map)  # type: ignore[union-attr, arg-type]


def test_listed_changes_are_those_of_both_top_five() -> None:
    found = ask("top.300")
    assert isinstance(found.after, Answer)
    rows = erase.changes(found.before, found.after)
    classes = [index for index, _, _ in rows]

    assert set(classes) == {index for index, _ in (*found.after.top, *found.before.top)}
    assert classes[:5] == [index for index, _ in found.after.top]
    for index, before, after in rows:
        assert before == float(found.before.probabilities[index])  # type: ignore[index]
        assert after == float(found.after.probabilities[index])  # type: ignore[index]
    assert [after for *_, after in rows] == sorted((after for *_, after in rows), reverse=True)
    assert messages.change(0.94, 0.785, True) == "−15.5 pp" and messages.change(0.0001, 0.0007, True) == "+0.1 pp"
    assert messages.change(0.5, 0.5, True) == "0 pp" and messages.value(0.0004, True) == "<0.1%"


def test_sentences_about_an_edit_name_the_class_and_the_probability_kept() -> None:
    """The large headline is the prediction after the edit; "the same" names the class that it means."""
    kept, lost = ask("top.200"), ask("top.500_fill.mean")
    for found in (kept, lost):
        before, after = found.before, found.after
        assert isinstance(after, Answer) and before.probabilities is not None and after.probabilities is not None
        first, second = messages.headline(before, after)
        names, (top, share) = before.settings.loaded.names, after.top[0]
        assert first == f"After the edit: {names[top]}, {percent(share)}."
        fraction = float(after.probabilities[before.target]) / float(before.probabilities[before.target])  # type: ignore[index]
        assert "94% before" in second and second.endswith(f"; {percent(fraction)} of its probability is kept.")
    assert messages.result(kept.before, kept.after).endswith("The prediction is still German shepherd.")  # type: ignore[arg-type]
    assert "The prediction is the same" not in messages.result(lost.before, lost.after)  # type: ignore[arg-type]
    risen = ask("invert_fill.blur_brightness.5")
    assert isinstance(risen.after, Answer)
    assert messages.headline(risen.after, risen.before)[1].count("kept") == 0, "nothing was lost"


@pytest.mark.parametrize("edit", ["top.200_fill.noise_noise.5", f"{STROKE}_fill.image"])
def test_a_bundle_repeats_the_edit(edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of an edited map, as the page saves it, gives the same map again, to the bit."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    dog, coffee = (shutil.copy(path, tmp_path) for path in (DOG, COFFEE))
    second = coffee if "image" in edit else None
    found = ask(edit, image=dog, second=second)
    assert isinstance(found.after, Answer)
    stored = record.record(found.after, floats(found.after.map))
    part = bundle.server_part([stored], dog, tmp_path, second)
    weights = part["weights"][found.after.settings.loaded.name]["sha256"]
    saved = Map("", stored["question"], stored["answer"], found.after.map.numpy(), True, weights)
    lines = [*replay._compare_map(saved, (dog, second))]

    assert stored["question"]["edit"] == edit and ("second_upload" in part) == bool(second)
    assert all(matches for _, matches in lines) and "bitwise equal" in lines[-1][0]
    if second:
        with pytest.raises(Refused, match="image has changed"):
            bundle.server_part([stored], dog, tmp_path, dog)
    with pytest.raises(Refused, match="image has changed"):
        bundle.server_part([stored], coffee, tmp_path, second)


def test_edits_do_not_reach_another_user() -> None:
    """Two users at once, one of whom edits: each gets what they get alone."""
    edits = ["top.200_fill.mean", f"{STROKE}_fill.blur", ""]

    def work(user: int) -> torch.Tensor:
        with runs.start(f"user{user}/erase") as run:
            assert run is not None
            request = Request(DOG, edit=edits[user])
            if not edits[user]:
                return next(s.map for s in engine.explain(request, run) if isinstance(s, Answer))
            *_, last = (step for step in erase.answers(request, "", run) if isinstance(step, erase.Erased))
            return last.after.map  # type: ignore[union-attr, return-value]

    alone = [work(user) for user in range(3)]
    assert not torch.equal(alone[0], alone[1])
    with ThreadPoolExecutor(3) as threads:
        for expected, found in zip(
            alone, threads.map(lambda user: [work(user) for _ in range(3)], range(3)), strict=True
        ):
            assert all(torch.equal(each, expected) for each in found)


def test_keys_tell_edits_apart(loaded: Any) -> None:
    """Otherwise one edit would get the cached map of another one."""
    settings = engine.resolve(Request(DOG))
    requests = [
        Request(DOG),
        Request(DOG, edit="invert"),
        Request(DOG, edit="flip.x"),
        Request(DOG, edit="invert_fill.image", second=COFFEE),
        Request(DOG, edit="invert_fill.image", second=DOG),
    ]

    assert len({results_cache.key(settings, request) for request in requests}) == 5
    assert len({results_cache.subject(settings, request) for request in requests}) == 5
    assert len({request.signature for request in requests}) == 5
