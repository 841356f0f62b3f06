"""What is wrong in a run, and what to do: the significant results of a report, those that explain most images first.

A fault is a claim that something has to be corrected: names, folders, a preprocessing, a mark, labels. What may be
natural, such as a confusion of two classes, is an observation and comes after the faults. Each kind is tested at
`LEVEL` divided by the number of kinds, and within a kind the p-values are adjusted for the number of tests (Holm). An
image that a fault explains is not evidence for the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from explainers import holm
from saliscope.runs.pages import templates
from saliscope.runs.report.analysis import slices as slicing
from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.label_errors import RandomLabels, estimate_random
from saliscope.runs.report.analysis.maps import GRID
from saliscope.runs.report.analysis.shortcuts import describe
from saliscope.runs.report.analysis.slices import FOLDER, LEVEL, NAMED, Slice
from saliscope.runs.report.analysis.summary import Rate, most_confident
from saliscope.runs.report.context import Page
from saliscope.runs.report.preprocessing import Trial, try_others
from saliscope.runs.rows import Booleans, Integers

SHOWN = 3
"""Answers with a sentence and images, and reasons with a count."""
EVIDENCE = 6
"""Images of an answer."""
KINDS = 8
"""Kinds of tests: preprocessing, names, slices by accuracy and by readability, shortcuts, labels, confusions, ECE."""
GAIN = 0.1
"""Minimum difference of two accuracies, or of accuracy and probability, that is reported."""
FEW = 5
"""Minimum number of images of a confusion."""
MOST = 20
"""Maximum number of confusions that are tested: the most frequent."""
BLANK = 3.0
"""An image whose values, from 0 to 255, have a lower standard deviation is blank."""


@dataclass(frozen=True)
class Answer:
    """One result: the `problem`, the `advice`, the id of the evidence on the page, and the number of explained images.

    `rows` are those of the images that show it. `is_fault` is False for an observation.
    """

    kind: str
    problem: str
    advice: str
    evidence: str
    count: int
    rows: list[int] = field(default_factory=list)
    is_fault: bool = True


class Answers:
    """What is wrong in the run of a page: `all` answers, the most important first, and the `trial` of preprocessings.

    `explained` `[n]` are the images that the faults found so far explain.
    """

    def __init__(self, page: Page) -> None:
        """Search for faults, and then for observations."""
        self.page, self.columns = page, page.columns
        self.explained = np.zeros(len(self.columns), dtype=bool)
        self.all: list[Answer] = []
        self.random: RandomLabels | None = None
        self.trial: Trial | None = None
        self.classes = max(len(page.names), 1 + int(self.columns.prediction_index.max(initial=-1)))
        self._find_unreadable()
        if not page.only_wrong:
            self._find_preprocessing()
            self._find_names()
            self._find_slices()
        self._find_shortcuts()
        self._find_labels()
        self._find_confusion()
        self._find_miscalibration()
        self.all.sort(key=lambda each: (not each.is_fault, -each.count))

    def _find_unreadable(self) -> None:
        """Images that cannot be read, in a folder if most of them are there. A few elsewhere are an observation."""
        bad = ~self.columns.readable
        if not bad.any():
            return
        rows, place = np.arange(len(bad)), "of the run"
        for each in self.page.unreadable.worst[:1] if self.page.unreadable else ():
            if bad[each.rows].sum() * 2 > bad.sum() and each.p * KINDS < LEVEL:
                rows, place = each.rows, _where(each)
        count = int(bad[rows].sum())
        is_fault = len(rows) < len(bad) or count >= GAIN * len(bad)
        values: dict[str, Any] = {"count": count, "images": len(rows), "place": place, "reasons": self._reasons(rows)}
        self._add("unreadable", "unreadable", bad, is_fault=is_fault, **values)

    def _reasons(self, rows: Sequence[int] | Integers) -> str:
        """Return why images among these cannot be read: the one reason, or the most frequent ones with their counts."""
        errors = self.columns.table["error"].take(pa.array(rows)).drop_null().to_pylist()
        counts = Counter(str(each).removesuffix(".") for each in errors).most_common()
        if len(counts) == 1:
            return counts[0][0]
        reasons = [f"{reason} ({count:,})" for reason, count in counts[:SHOWN]]
        rest = sum(count for _, count in counts[SHOWN:])
        return "; ".join([*reasons, *([f"other reasons ({rest:,})"] if rest else [])])

    def _find_preprocessing(self) -> None:
        """Another preprocessing with which the network is much more accurate."""
        self.trial = trial = try_others(self.page.report, self.columns, np.arange(len(self.columns)))
        if trial is not None and _is_better(trial):
            self._add("preprocessing", "preprocessing", self.columns.wrong, trial.rows, trial=trial)

    def _find_names(self) -> None:
        """Classes whose names are exchanged: nearly all images of A are predicted as B, and of B as A."""
        index = self.columns.label_index
        for cycle in _exchanged(self.columns, ~self.explained):
            following = np.full(self.classes, -1)
            following[cycle] = [*cycle[1:], cycle[0]]
            here = self.columns.wrong & (index >= 0) & (following[index] == self.columns.prediction_index)
            names = [str(self.columns.label[int((index == each).argmax())]) for each in cycle]
            moved = [int(here[index == each].sum()) for each in cycle]
            whole = [self.columns.labeled.get(each, 0) for each in cycle]
            pairs = [[each["label"], each["prediction"]] for each in self.page.confusions]
            evidence = f"confusion-{pairs.index(names[:2]) + 1}" if names[:2] in pairs else "confusions"
            self._add("names", evidence, here, names=names, moved=moved, whole=whole)
            self.explained |= np.isin(index, cycle)

    def _find_slices(self) -> None:
        """Folders and values with a lower accuracy than other images with the same labels."""
        worst = self.page.slices.worst if self.page.slices else []
        kept = [each for each in worst if each.p * KINDS < LEVEL]
        # Many mistakes, and dense ones: a folder comes before the folder above it, and before a part of its images.
        for each in sorted(kept, key=lambda one: -one.rate.count * max(0, one.rest.value - one.rate.value) ** 1.5):
            wrong = self._mask(each.rows) & self.columns.wrong
            if each.rest.value - each.rate.value < GAIN or 2 * (wrong & self.explained).sum() > wrong.sum():
                continue
            values = {"slice": each, "place": _where(each), **self._describe(each, wrong)}
            self._add("slice", f"slice-{worst.index(each) + 1}", wrong, **values)

    def _describe(self, each: Slice, wrong: Booleans) -> dict[str, Any]:
        """Return what the images of a slice have in common."""
        report = self.page.report
        images = [image for row in each.rows[:12] if (image := report.read(self.columns.path(int(row)))) is not None]
        if len(images) >= FEW and np.mean([np.asarray(image.convert("L")).std() < BLANK for image in images]) > 0.5:
            return {"blank": True}
        trial = try_others(report, self.columns, each.rows, images_only=True)
        if trial is not None and _is_better(trial):
            return {"trial": trial}
        label, prediction = self.columns.label, self.columns.prediction
        pairs, counts = np.unique(np.stack([label.codes, prediction.codes])[:, wrong], axis=1, return_counts=True)
        a, b = pairs[:, counts.argmax()]
        pair = label.values[a], prediction.values[b]
        return {"pair": pair, "count": int(counts.max()), "border": self._border(wrong)}

    def _find_shortcuts(self) -> None:
        """Marks that the network uses as evidence for a class."""
        for number, each in enumerate(self.page.shortcuts, 1):
            rows = self.page.maps.rows[each.members]
            marked = Rate(len(rows), each.of), Rate(round(each.others_alike * each.others), each.others)
            if slicing.lower(marked[1], marked[0]) * GRID**2 * len(self.page.candidates) * KINDS >= LEVEL:
                continue
            here = self._mask(rows)
            wrong = here & self.columns.wrong
            shown = list(dict.fromkeys([*most_confident(self.columns, wrong, EVIDENCE), *rows.tolist()]))
            values: dict[str, Any] = {"images": len(rows), "place": describe(each.box), "wrong": int(wrong.sum())}
            self._add("shortcut", f"shortcut-{number}", here, shown, mark=each, **values)

    def _find_labels(self) -> None:
        """Labels that do not depend on the image."""
        errors = self.page.errors
        if errors is None:
            return
        self.random = estimate_random(errors, self.columns, self.classes, self.explained)
        if self.random is None or self.random.p * KINDS >= LEVEL:
            return
        rows = errors.rows[~self.explained[errors.rows]]
        count = round(self.random.share * int((~self.explained & (self.columns.label_index >= 0)).sum()))
        here = self._mask(rows[:count])
        self._add("labels", "label-errors", here, rows.tolist(), count=count, random=self.random)

    def _find_confusion(self) -> None:
        """The most frequent confusion that no fault explains, as an observation."""
        columns = self.columns
        pairs = [each for each in self.page.confusions[:MOST] if each["count"] >= FEW]
        p_values = []
        for each in pairs:
            labeled = columns.readable & columns.label.are(each["label"])
            outside = columns.readable & ~labeled & ~columns.label.are(each["prediction"])
            predicted = outside & columns.prediction.are(each["prediction"])
            inside, others = Rate(each["count"], int(labeled.sum())), Rate(int(predicted.sum()), int(outside.sum()))
            p_values.append(slicing.lower(others, inside) if others.count else 1.0)
        adjusted = holm([*p_values, *[1.0] * (self.page.different - len(pairs))])[: len(pairs)]
        for number, (each, p) in enumerate(zip(pairs, adjusted, strict=True), 1):
            here = columns.wrong & columns.label.are(each["label"]) & columns.prediction.are(each["prediction"])
            here &= ~self.explained
            if here.sum() < FEW or 2 * here.sum() < each["count"] or (p * KINDS >= LEVEL and not self.page.only_wrong):
                continue
            self._add("confusion", f"confusion-{number}", here, is_fault=False, pair=each, border=self._border(here))
            return

    def _find_miscalibration(self) -> None:
        """A mean probability far from the accuracy, as an observation."""
        found = self.page.calibration
        if found is None or found.p * KINDS >= LEVEL:
            return
        accuracy = sum(each.rate.correct for each in found.bins) / found.count
        confidence = sum(each.confidence * each.rate.count for each in found.bins) / found.count
        if abs(confidence - accuracy) >= GAIN and not any(each.is_fault for each in self.all):
            values: dict[str, Any] = {"confidence": confidence, "accuracy": accuracy}
            self._add("calibration", "calibration", self._mask([]), is_fault=False, **values)

    def _add(
        self, kind: str, evidence: str, here: Booleans, rows: Sequence[int] = (), is_fault: bool = True, **values: Any
    ) -> None:
        """Add an answer; `values` are those that its sentences need.

        It shows the first of `rows`, or without any, the most confident predictions among the explained images.
        """
        text = templates().get_template("answers.txt").render(kind=kind, **values)
        problem, advice = text.strip().rsplit("\n", 1)
        rows = rows or most_confident(self.columns, here & self.columns.readable, EVIDENCE)
        self.all.append(Answer(kind, problem, advice, evidence, int(here.sum()), [*rows[:EVIDENCE]], is_fault))
        if is_fault:
            self.explained |= here

    def _mask(self, rows: Sequence[int] | Integers) -> Booleans:
        """Return which rows `[n]` are among these."""
        mask = np.zeros(len(self.columns), dtype=bool)
        mask[rows] = True
        return mask

    def _border(self, here: Booleans) -> float | None:
        """Return the share of the relevance of some images at the border, if it is most of it."""
        shares = self.page.all_maps.regions["border"].shares[here]
        shares = shares[np.isfinite(shares)]
        return float(shares.mean()) if len(shares) and shares.mean() > 0.5 else None

    @property
    def lowest(self) -> tuple[int, float]:
        """The size of a tenth of the labeled images, and the highest accuracy with which such a slice is found."""
        from scipy.stats import hypergeom  # scipy takes a second to start

        labeled, slices = sum(self.columns.labeled.values()), self.page.slices
        count = max(slicing.LEAST, labeled // 10)
        level = LEVEL / KINDS / (slices.tested if slices else 1)
        hits = hypergeom(labeled, labeled - int(self.columns.wrong.sum()), count).ppf(level) - 1
        return count, max(0.0, float(hits)) / count


def _exchanged(columns: Columns, usable: Booleans) -> list[list[int]]:
    """Return the classes whose names were exchanged, as cycles: each is predicted as the next one.

    The names are assigned to the classes so that most predictions are correct. Where this changes the name of a class,
    at least twice as many predictions must agree with the new names as with the old ones, and significantly more.
    """
    from scipy.optimize import linear_sum_assignment  # scipy takes a second to start
    from scipy.stats import binom  # as above

    known = usable & columns.readable & (columns.label_index >= 0) & (columns.prediction_index >= 0)
    size = 1 + int(max(columns.label_index.max(initial=0), columns.prediction_index.max(initial=0)))
    pairs = columns.label_index[known].astype(np.int64) * size + columns.prediction_index[known]
    pairs, images = np.unique(pairs, return_counts=True)
    classes, codes = np.unique(np.stack(np.divmod(pairs, size)), return_inverse=True)
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    counts[tuple(codes.reshape(2, -1))] = images
    following = linear_sum_assignment(counts, maximize=True)[1]
    found, free = [], set(np.flatnonzero((following != np.arange(len(classes))) & (counts.sum(1) > 0)).tolist())
    while free:
        cycle = [free.pop()]
        while (after := int(following[cycle[-1]])) in free:
            free.remove(after)
            cycle.append(after)
        new, old = int(counts[cycle, following[cycle]].sum()), int(counts[cycle, cycle].sum())
        chance = binom.logsf(new - 1, new + old, 0.5) + len(cycle) * np.log(len(classes))  # of any such cycle
        if following[cycle[-1]] == cycle[0] and new >= 2 * old and chance < np.log(LEVEL / KINDS):
            found.append([int(classes[each]) for each in cycle])
    return found


def _is_better(trial: Trial) -> bool:
    return trial.p * KINDS < LEVEL and trial.after.value - trial.before.value >= GAIN


def _where(each: Slice) -> str:
    if each.column.startswith(FOLDER):
        return f"in the folder {each.value}"
    return f"in folders named {each.value}" if each.column.startswith(NAMED) else f"where {each.column} is {each.value}"
