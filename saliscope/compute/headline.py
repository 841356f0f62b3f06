"""The sentence above the map: what the network predicts, and in which part of the crop the map has its mass, or the
verdict on the map if its position means nothing.

The crop is divided into thirds. The sentence names the smallest of these parts that has most of the map: one ninth, two
adjacent ninths, a band of three, or four in a square. Negative values of a signed map are not counted.
"""

from __future__ import annotations

from typing import Any

import torch

from explainers import Verdict
from saliscope.compute import messages, model_cache, removal
from saliscope.compute.answers import Answer, Refining
from saliscope.percentages import percent

MOST = 0.5
"""A map is "mainly" in a part of the crop that has at least this fraction of it, ..."""
DENSER = 1.25
"""... and this many times its fraction of the area, because an even map has nearly half of its mass in four ninths."""

ROWS, COLUMNS = ("upper", "center", "lower"), ("left", "center", "right")
BANDS = "the upper third", "a horizontal band across the center", "the lower third"
UPRIGHT_BANDS = "the left third", "a vertical band through the center", "the right third"

SENTENCES = {
    "prediction": ("The network prefers some class; of a channel only its name.", "{name}, {score}."),
    "no_preference": ("The network has no preference; the verdict says why.", "No preference."),
    "computing": ("The map of a slow method has just been started.", "{method} is being computed."),
    "mainly": (
        f"The verdict allows a position, and one to four ninths of the crop have at least {MOST:.0%} of the positive "
        f"values, and {DENSER:g} times their share of the area. The smallest such part is named.",
        "{subject} is mainly in {place} ({amount}).",
    ),
    "even": (
        f"The verdict allows a position, and no ninth of the crop has {DENSER:g} times its share.",
        "{subject} is spread evenly over the crop.",
    ),
    "spread": (
        "The verdict allows a position, and neither of these holds.",
        "{subject} is spread out, with the most in {place} ({amount}).",
    ),
}
"""What the headline says unless it shows the verdict: by name, the condition and the sentence."""
SUBJECTS = {
    "The evidence": "The map is better than every control and depends on class and weights.",
    "The sensitivity of the score": "The map is a gradient, and its sizes are drawn.",
    "The map": "Otherwise.",
}
"""The {subject} of these sentences, and its condition."""


def shares(values: torch.Tensor) -> torch.Tensor:
    """Return the fractions [3, 3] of the positive part of a map [h, w] in thirds of its height and width.

    A cell that two thirds share counts for both by area. All fractions are NaN if there is no positive value, or if a
    value is not finite.
    """
    thirds = torch.eye(3, dtype=torch.float64)  # a third of a cell lies in one third of the side
    rows, columns = (thirds.repeat_interleave(cells, 1).view(3, cells, 3).mean(2) for cells in values.shape)
    mass = rows @ values.double().cpu().clamp(min=0) @ columns.T
    return mass / mass.sum()


def largest_part(fractions: torch.Tensor) -> tuple[str, float, bool]:
    """Return the name of the smallest part with most of the map, its fraction, and whether any part has most of it.

    If none has, it is the ninth with the largest fraction.

    fractions   [3, 3] from `shares`; finite
    """
    best: dict[int, tuple[float, str]] = {}
    for height, width in ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2)):
        for top in range(4 - height):
            for left in range(4 - width):
                fraction = float(fractions[top : top + height, left : left + width].sum())
                size = height * width
                if fraction > best.get(size, (0.0, ""))[0]:
                    best[size] = fraction, _name(top, left, height, width)
    for size, (fraction, name) in sorted(best.items()):
        if fraction >= max(MOST, DENSER * size / 9):
            return name, fraction, True
    fraction, name = best[1]
    return name, fraction, False


def _name(top: int, left: int, height: int, width: int) -> str:
    """Return the name of a part of the crop, in ninths from the upper left corner."""
    if width == 3:
        return BANDS[top]
    if height == 3:
        return UPRIGHT_BANDS[left]
    if height == width == 2:
        return f"the {('upper', 'lower')[top]} {('left', 'right')[left]}"
    cells = [_cell(top + row, left + column) for row in range(height) for column in range(width)]
    return " and ".join(cells)


def _cell(row: int, column: int) -> str:
    """Return the name of a ninth of the crop: "the upper left corner", "the center", "the center right"."""
    if row == column == 1:
        return "the center"
    return f"the {ROWS[row]} {COLUMNS[column]}{' corner' if row != 1 and column != 1 else ''}"


def headline(step: Answer, verdict: Verdict | None = None) -> list[str]:
    """Return the two sentences about a finished map: the prediction, and what depends on the map (may be empty).

    The second is the result of the experiment of `saliscope/compute/removal.py` if it is known, else the position of
    the mass of the map if the verdict allows it, else the verdict. A verdict that no test could change is given in any
    case. `verdict` is the one after the tests of the map.
    """
    verdict = verdict or step.verdict
    if even := step.settings.loaded.no_preference(step.probabilities):
        return [_prediction(step), even]
    if verdict.code == "planes":
        return [_prediction(step), ""]  # one of several planes says little about the whole
    second = _position(step, verdict) if verdict.shows_position else verdict.sentence
    if verdict.follows_tests or verdict.code == "control":
        second = removal.sentence(step) or second
    return [_prediction(step), second]


def before_the_map(step: Refining) -> list[str]:
    """Return the prediction and the method at the start of a slow run, and an empty list for its later steps."""
    is_first = step.probabilities is not None or (step.scene is not None and step.fraction == 0)
    if step.settings.unit or not is_first:
        return []
    return [_prediction(step), _say("computing", method=step.settings.method.title)]


def _say(sentence: str, /, **values: str) -> str:
    return SENTENCES[sentence][1].format(**values)


def _prediction(step: Answer | Refining) -> str:
    """Return the explained target, or the top prediction if the method is class-agnostic, with its score."""
    settings = step.settings
    if settings.unit:
        return f"{messages.capitalize(step.name)}."
    if settings.loaded.no_preference(step.probabilities):
        return SENTENCES["no_preference"][1]
    if settings.sentences:
        return _say("prediction", name=messages.subject(step), score=messages.confidence(step))
    if settings.method.reads_class or not step.top:
        return _say("prediction", name=messages.capitalize(step.name), score=messages.confidence(step))
    index, share = step.top[0]
    name = messages.capitalize(settings.loaded.names[index])
    return _say("prediction", name=name, score=messages.class_score(share, settings.loaded))


def _position(step: Answer, verdict: Verdict) -> str:
    """Return the position of the mass of the map, as evidence only if the verdict calls it evidence."""
    unit = step.settings.method.unit
    # How much the score reacts to changes: the sign is not evidence.
    sensitive = "per unit of" in unit or unit.startswith("squared")
    signed = not sensitive and bool((step.map < 0).any())
    name, fraction, mainly = largest_part(shares(step.map.abs() if sensitive else step.map))
    amount = f"{percent(fraction)} of the {'positive values' if signed else 'map'}"
    subject = "The evidence" if verdict.is_evidence else "The map"
    if sensitive and step.settings.method.reads_class:
        subject = "The sensitivity of the score"
    if mainly:
        return _say("mainly", subject=subject, place=name, amount=amount)
    if fraction < DENSER / 9:
        return _say("even", subject=subject)
    return _say("spread", subject=subject, place=name, amount=amount)


def next_step(step: Answer) -> dict[str, Any] | None:
    """Return the most useful next question as a label and what a click on it does, or None.

    Returns  "label", and "choose" (settings of the page) or "compare" (panels of the comparison)
    """
    settings = step.settings
    if settings.unit:
        return None
    if not settings.method.reads_class:
        default = model_cache.default_method(settings.loaded)
        noun = "sentence" if settings.sentences else messages.CLASS
        return {"label": messages.explain_with(default.title, noun), "choose": {"method": default.name}}
    names = [settings.class_names[index] for index, _ in step.top]
    if settings.sentences:
        names = settings.sentences.listed[1:]
    if step.scene:
        names = [item.name for item in step.scene.objects]
    other = next((name for name in names if name != step.name), None)
    if other is None:
        return None
    return {
        "label": messages.compare_with(other),
        "compare": [{"own": {}}, {"own": {"target": other}, "classed": True}],
    }


def status(step: Answer, ident: int, verdict: Verdict | None = None) -> dict[str, Any]:
    """Return the status of a finished map, with the sentences, which have the score, and the next question.

    `verdict` is as in `headline`. The sentences are settled if tests of the map cannot change them.
    """
    # The highest part of the map of a classifier can be erased.
    erase = None if step.scene or step.planes else messages.ERASE
    shown = {"headline": headline(step, verdict), "next": next_step(step), "erase": erase}
    settled = verdict is not None or bool(removal.sentence(step))
    return messages.answered(step, ident, score=False) | shown | {"key": step.settings.key, "settled": settled}
