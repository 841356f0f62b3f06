"""What is wrong in a run, and what to do: the significant results of a report, those that explain most images first.

A fault is a claim that something has to be corrected: names, folders, a preprocessing, a mark, labels. What may be
natural, such as a confusion of two classes, is an observation and comes after the faults. Each kind is tested at
`LEVEL` divided by the number of kinds, and within a kind the p-values are adjusted for the number of tests (Holm). An
image that a fault explains is not evidence for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from explainers import holm
from saliscope.runs.formats import percent, plural
from saliscope.runs.report.analysis import slices as slicing
from saliscope.runs.report.analysis.calibration import Calibration
from saliscope.runs.report.analysis.clusters import GRID, Cluster
from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.label_errors import LabelErrors, RandomLabels, estimate_random
from saliscope.runs.report.analysis.shortcuts import Candidate, describe
from saliscope.runs.report.analysis.slices import FOLDER, LEVEL, NAMED, Slice, Slices
from saliscope.runs.report.analysis.summary import Confusions, Pair, Rate, unreadable
from saliscope.runs.report.context import Context
from saliscope.runs.report.preprocessing import Trial, try_others

SHOWN = 3
"""Answers with a sentence and images."""
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


@dataclass(frozen=True)
class Results:
    """The results of a run that determine what is on its page. Slices are by accuracy, and by readability."""

    page: Context
    clusters: list[Cluster]
    candidates: list[Candidate]
    errors: LabelErrors | None
    confusions: Confusions
    calibration: Calibration | None
    slices: Slices | None
    unreadable: Slices | None

    @cached_property
    def answers(self) -> Answers:
        """What is wrong in the run."""
        return Answers(self)


class Answers:
    """The answers, the most important first, what was `tested`, and the `trial` of other preprocessings, if any.

    `explained` `[n]` are the images that the faults found so far explain.
    """

    def __init__(self, results: Results) -> None:
        """Search for faults, and then for observations."""
        self.page, self.results, self.columns = results.page, results, results.page.columns
        self.explained = np.zeros(len(self.columns), dtype=bool)
        self.all: list[Answer] = []
        self.random: RandomLabels | None = None
        self.trial: Trial | None = None
        self.classes = max(len(self.page.names), 1 + int(self.columns.prediction_index.max(initial=-1)))
        self._find_unreadable()
        if not self.page.only_wrong:
            self._find_preprocessing()
            self._find_names()
            self._find_slices()
        self._find_shortcuts()
        if results.errors is not None:
            self._find_labels(results.errors)
        self._find_confusion()
        self._find_miscalibration()
        self.all.sort(key=lambda each: (not each.is_fault, -each.count))
        self.tested = self._list_tests()

    @property
    def rows(self) -> list[int]:
        """The rows of the images that are shown with answers."""
        return [row for answer in self.all[:SHOWN] for row in answer.rows]

    def _find_unreadable(self) -> None:
        """Images that cannot be read, in a folder if most of them are there. A few elsewhere are an observation."""
        bad = ~self.columns.readable
        if not bad.any():
            return
        rows, place = np.arange(len(bad)), "of the run"
        slices = self.results.unreadable
        for each in slices.worst[:1] if slices else ():
            if bad[each.rows].sum() * 2 > bad.sum() and each.p * KINDS < LEVEL:
                rows, place = each.rows, _where(each)
        error = str(unreadable(self.columns)[0]["error"]).removesuffix(".")
        count = int(bad[rows].sum())
        problem = f"{count:,} of {plural(len(rows), 'image')} {place} cannot be read: {error}."
        advice = "Replace these files, and explain the images again."
        is_fault = len(rows) < len(bad) or count >= GAIN * len(bad)
        self._add("unreadable", problem, advice, "unreadable", bad, [], is_fault=is_fault)

    def _find_preprocessing(self) -> None:
        """Another preprocessing with which the network is much more accurate."""
        self.trial = trial = try_others(self.page.report, self.columns, np.arange(len(self.columns)))
        if trial is not None and _is_better(trial):
            before, after = percent(trial.before.value), percent(trial.after.value)
            problem = (
                f"The preprocessing is wrong: with {trial.best.name}, accuracy rises from {before} to {after} of "
                f"{plural(trial.after.count, 'image')}."
            )
            advice = (
                f"{trial.best.advice}, and explain the images again. Other results on this page may follow from it."
            )
            self._add("preprocessing", problem, advice, "preprocessing", self.columns.wrong, trial.rows)

    def _find_names(self) -> None:
        """Classes whose names are exchanged: nearly all images of A are predicted as B, and of B as A."""
        for cycle in _exchanged(self.columns, ~self.explained):
            following = dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
            index = self.columns.label_index
            target = np.array([following.get(each, -1) for each in range(self.classes)])
            known = self.columns.wrong & (index >= 0)
            here = np.zeros(len(index), dtype=bool)
            here[known] = target[index[known]] == self.columns.prediction_index[known]
            names = [self._name(each) for each in cycle]
            if len(cycle) == 2:
                moved = [int(here[index == each].sum()) for each in cycle]
                whole = [self.columns.labeled.get(each, 0) for each in cycle]
                problem = (
                    f"The names {names[0]} and {names[1]} are exchanged: {moved[0]:,} of {plural(whole[0], 'image')} "
                    f"of {names[0]} {_be(moved[0])} predicted as {names[1]}, and {moved[1]:,} of {whole[1]:,} the "
                    "other way."
                )
            else:
                problem = f"The names of {len(cycle)} classes are in another order: {', '.join(names[:6])}."
            advice = "Check the order of the class names, or the names of the folders."
            self._add("names", problem, advice, self._row_of(names[0], names[1]), here, self._confident(here))
            self.explained |= np.isin(index, cycle)

    def _find_slices(self) -> None:
        """Folders and values with a lower accuracy than other images with the same labels."""
        slices = self.results.slices
        kept = [each for each in slices.worst if each.p * KINDS < LEVEL] if slices else []
        # Many mistakes, and dense ones: a folder comes before the folder above it, and before a part of its images.
        for each in sorted(kept, key=lambda one: -one.rate.count * max(0, one.rest.value - one.rate.value) ** 1.5):
            wrong = np.zeros(len(self.columns), dtype=bool)
            wrong[each.rows] = self.columns.wrong[each.rows]
            if each.rest.value - each.rate.value < GAIN or 2 * (wrong & self.explained).sum() > wrong.sum():
                continue
            inside, outside = percent(each.rate.value), percent(each.rest.value)
            problem = (
                f"Accuracy {_where(each)} is {inside} of {plural(each.rate.count, 'image')}, compared with {outside} "
                f"of other images with the same labels.{self._describe(each, wrong)}"
            )
            advice = "Check how these images were made, stored and labeled."
            evidence = f"slice-{slices.worst.index(each) + 1}" if slices else ""
            self._add("slice", problem, advice, evidence, wrong, self._confident(wrong))

    def _describe(self, each: Slice, wrong: NDArray[np.bool_]) -> str:
        """Return what the images of a slice have in common, as a sentence."""
        report = self.page.report
        images = [image for row in each.rows[:12] if (image := report.read(self.columns.path(int(row)))) is not None]
        if len(images) >= FEW and np.mean([np.asarray(image.convert("L")).std() < BLANK for image in images]) > 0.5:
            return " Its images are blank."
        trial = try_others(report, self.columns, each.rows, images_only=True)
        if trial is not None and _is_better(trial):
            before, after = percent(trial.before.value), percent(trial.after.value)
            return f" With {trial.best.name}, it is {after} instead of {before}."
        label, prediction = self.columns.label, self.columns.prediction
        pairs, counts = np.unique(np.stack([label.codes, prediction.codes])[:, wrong], axis=1, return_counts=True)
        a, b = pairs[:, counts.argmax()]
        text = f"{label.values[a]} is predicted as {prediction.values[b]} in {plural(int(counts.max()), 'image')}"
        return f" {text}{self._border(wrong)}."

    def _find_shortcuts(self) -> None:
        """Marks that the network uses as evidence for a class."""
        found = [each for each in self.results.candidates if each.is_shortcut]
        for number, each in enumerate(found):
            rows = self.page.maps.rows[each.members]
            marked = Rate(len(rows), each.of), Rate(round(each.others_alike * each.others), each.others)
            if slicing.lower(marked[1], marked[0]) * GRID**2 * len(self.results.candidates) * KINDS >= LEVEL:
                continue
            here = np.zeros(len(self.columns), dtype=bool)
            here[rows] = True
            wrong = here & self.columns.wrong
            count, relevance = int(wrong.sum()), percent(each.relevance)
            others = f" {count:,} of them {_have(count)} another label." if count else ""
            problem = (
                f"{each.name} may be recognized by a mark in the {describe(each.box)}: {len(rows):,} of "
                f"{plural(each.of, 'image')} predicted as {each.name} have it, with {relevance} of their relevance."
                f"{others}"
            )
            advice = "Cover the mark in some of these images. If the prediction changes, train without it."
            shown = [*self._confident(wrong), *rows.tolist()]
            self._add("shortcut", problem, advice, f"shortcut-{number + 1}", here, list(dict.fromkeys(shown)))

    def _find_labels(self, errors: LabelErrors) -> None:
        """Labels that do not depend on the image."""
        self.random = estimate_random(errors, self.columns, self.classes, self.explained)
        if self.random is None or self.random.p * KINDS >= LEVEL:
            return
        rows = errors.rows[~self.explained[errors.rows]]
        count = round(self.random.share * int((~self.explained & (self.columns.label_index >= 0)).sum()))
        problem = (
            f"About {plural(count, 'label')} {_be(count)} wrong, {percent(self.random.share)} (95% interval "
            f"{percent(self.random.low)} to {percent(self.random.high)}): the network finds them nearly impossible."
        )
        here = np.zeros(len(self.columns), dtype=bool)
        here[rows[:count]] = True
        self._add("labels", problem, "Check the labels of these images first.", "label-errors", here, rows.tolist())

    def _find_confusion(self) -> None:
        """The most frequent confusion that no fault explains, as an observation."""
        columns = self.columns
        free = columns.wrong & ~self.explained
        pairs = [each for each in self.results.confusions.pairs[:MOST] if each.count >= FEW]
        totals = np.bincount(columns.label.codes[columns.readable & (columns.label.codes >= 0)], minlength=1)
        codes = {name: code for code, name in enumerate(columns.label.values)}
        p_values = []
        for each in pairs:
            predicted = columns.prediction.codes == columns.prediction.values.index(each.prediction)
            outside = columns.readable & (columns.label.codes != codes[each.label])
            outside &= columns.label.codes != codes.get(each.prediction, -1)
            inside = Rate(each.count, int(totals[codes[each.label]]))
            others = Rate(int((outside & predicted).sum()), int(outside.sum()))
            p_values.append(slicing.lower(others, inside) if others.count else 1.0)
        adjusted = holm([*p_values, *[1.0] * (self.results.confusions.different - len(pairs))])[: len(pairs)]
        for each, p in zip(pairs, adjusted, strict=True):
            here = free & (columns.label.codes == codes[each.label])
            here &= columns.prediction.codes == columns.prediction.values.index(each.prediction)
            if here.sum() < FEW or 2 * here.sum() < each.count or (p * KINDS >= LEVEL and not self.page.only_wrong):
                continue
            problem = (
                f"{each.label} is predicted as {each.prediction} in {each.count:,} of "
                f"{plural(round(each.count / each.share), 'image')}{self._border(here)}."
            )
            advice = "Compare these images with those of the other class. If both look alike, train with more of them."
            evidence = self._row_of(each.label, each.prediction)
            self._add("confusion", problem, advice, evidence, here, self._confident(here), is_fault=False)
            return

    def _find_miscalibration(self) -> None:
        """A mean probability far from the accuracy, as an observation."""
        found = self.results.calibration
        if found is None or self.page.only_wrong or found.p * KINDS >= LEVEL:
            return
        count = sum(each.rate.count for each in found.bins)
        accuracy = sum(each.rate.correct for each in found.bins) / count
        confidence = sum(each.confidence * each.rate.count for each in found.bins) / count
        if abs(confidence - accuracy) < GAIN or any(each.is_fault for each in self.all):
            return
        word = "high" if confidence > accuracy else "low"
        average, correct = percent(confidence), percent(accuracy)
        problem = f"Probabilities are too {word}: {average} on average, with an accuracy of {correct}."
        advice = "Do not read them as the chance of a correct prediction. Temperature scaling corrects them."
        self._add("calibration", problem, advice, "calibration", np.zeros(0, dtype=bool), [], is_fault=False)

    def _add(
        self,
        kind: str,
        problem: str,
        advice: str,
        evidence: str,
        here: NDArray[np.bool_],
        rows: list[int],
        *,
        is_fault: bool = True,
    ) -> None:
        self.all.append(Answer(kind, problem, advice, evidence, int(here.sum()), rows[:EVIDENCE], is_fault))
        if is_fault:
            self.explained |= here

    def _confident(self, here: NDArray[np.bool_]) -> list[int]:
        """Return the rows of some images, the most probable prediction first."""
        rows = np.flatnonzero(here)
        return rows[np.argsort(-np.nan_to_num(self.columns.probability[rows]), kind="stable")][:EVIDENCE].tolist()

    def _border(self, here: NDArray[np.bool_]) -> str:
        """Return where the maps of some images lie, if it is the border."""
        shares = self.page.all_maps.regions["border"].shares[here]
        shares = shares[np.isfinite(shares)]
        if not len(shares) or shares.mean() <= 0.5:
            return ""
        return f"; {percent(float(shares.mean()))} of their relevance is at the border"

    def _name(self, index: int) -> str:
        row = int((self.columns.label_index == index).argmax())
        return str(self.columns.label[row])

    def _row_of(self, label: str, prediction: str) -> str:
        """Return the id of a row in the table of confusions."""
        pairs: list[Pair] = self.results.confusions.pairs
        numbers = [k + 1 for k, each in enumerate(pairs) if (each.label, each.prediction) == (label, prediction)]
        return f"confusion-{numbers[0]}" if numbers else "confusions"

    def _list_tests(self) -> list[str]:
        """Return what was tested, and how large a fault would have been found."""
        labeled = sum(self.columns.labeled.values())
        if self.page.only_wrong or not labeled:
            why = "the run has only wrong predictions" if self.page.only_wrong else "no label is a class of the network"
            return [f"Accuracy was not tested, because {why}."]
        tests = [f"Exchanged names: tested with {plural(labeled, 'labeled image')}."]
        slices = self.results.slices
        if slices and slices.tested:
            count = max(slicing.LEAST, labeled // 10)
            level = LEVEL / KINDS / slices.tested
            limit = _largest_low(count, labeled, int(self.columns.wrong.sum()), level)
            tests.append(
                f"Folders and values: {slices.tested} tested. One of {count} images is found if its accuracy is "
                f"{percent(limit)} or less."
            )
        else:
            tests.append("Folders and values: not tested, because there are none with enough images.")
        if self.trial is not None:
            others, images = len(self.trial.tried) - 1, plural(self.trial.after.count, "image")
            tests.append(f"Preprocessing: {others} others tested with {images}.")
        elif self.page.report.model is None:
            tests.append("Preprocessing: not tested, because the network is not available.")
        else:
            tests.append("Preprocessing: not tested, because too few predictions are wrong.")
        if self.random is not None:
            tests.append(
                f"Wrong labels: at most {percent(self.random.high)} of {plural(labeled, 'image')} (95% confidence)."
            )
        return tests


def _exchanged(columns: Columns, usable: NDArray[np.bool_]) -> list[list[int]]:
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


def _largest_low(count: int, total: int, wrong: int, level: float) -> float:
    """Return the highest accuracy of a slice that is significantly lower than that of all other images."""
    from scipy.stats import hypergeom  # scipy takes a second to start

    hits = hypergeom(total, total - wrong, count).ppf(level) - 1
    return max(0.0, float(hits)) / count


def _is_better(trial: Trial) -> bool:
    return trial.p * KINDS < LEVEL and trial.after.value - trial.before.value >= GAIN


def _where(each: Slice) -> str:
    if each.column.startswith(FOLDER):
        return f"in the folder {each.value}"
    return f"in folders named {each.value}" if each.column.startswith(NAMED) else f"where {each.column} is {each.value}"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
