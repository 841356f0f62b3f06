"""`Evaluation`, the result of `evaluate`: the metrics of a map, compared with those of the controls.

A metric without a comparison says little: the deletion area depends more on the image than on the map. Every map is
therefore compared with controls on the same image (see `Comparison`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from explainers.display.charts import Chart, charts_html, charts_images, line_chart, mean_curve
from explainers.display.display import (
    Display,
    Displayed,
    findings_html,
    name_classes,
    paragraphs,
    table_html,
    target_name,
)
from explainers.errors import BadOption
from explainers.findings import Finding
from explainers.metrics.comparison import Comparison, adjust, compare, judge_comparisons, mean_and_error, results_of
from explainers.metrics.metric import METRICS, Measurement, ranks
from explainers.probabilities import UNITS, WORDS
from explainers.verdict.facts import CONTROLS
from explainers.verdict.rules import Verdict, describe_results

STOPPED, OVER = "the call was stopped", "the time budget was exceeded"
"""Reasons for values that were not computed."""
NOT_FINITE = "the score of the image, or of a perturbed one, is not finite"


@dataclass(frozen=True, eq=False)
class Evaluation(Displayed):
    """The result of `evaluate`.

    `values[metric]` is [N]; `controls[metric][control]` is [N], for "random" the mean over the random maps, whose
    standard deviation is `spread[metric]` [N]. Their single values are `random_values[metric]` [N, 2k], each map
    followed by its negative. `curves[metric]` and `control_curves[metric][control]` are [N, points], for metrics that
    are areas under a curve; `random_curves[metric]` [N, 2k, points] are those of the single random maps.
    `reasons[metric][n]` says why a value is NaN or uses fewer samples than requested. `maps` [N, H, W] are the
    evaluated maps at the images' size; `target` class indices or the target's repr; `options` all settings; `seconds`
    is wall time. `is_complete` says whether every value was computed, including those of the controls. `findings` are
    warnings about the network: its rows depend on each other, or it is stochastic.
    """

    values: dict[str, Tensor]
    controls: dict[str, dict[str, Tensor]]
    spread: dict[str, Tensor]
    curves: dict[str, Tensor]
    control_curves: dict[str, dict[str, Tensor]]
    reasons: dict[str, list[str]]
    maps: Tensor
    method: str | None
    layer: str | None
    target: list[int] | str | None
    options: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    is_complete: bool = True
    findings: list[Finding] = field(default_factory=list)
    random_values: dict[str, Tensor] = field(default_factory=dict)
    random_curves: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int | slice) -> Evaluation:
        """Return the evaluation of one image or of several."""
        one = as_slice(index, len(self))

        def cut(value: Any) -> Any:
            return {name: cut(each) for name, each in value.items()} if isinstance(value, dict) else value[one]

        by_image = "values controls spread curves control_curves reasons maps random_values random_curves".split()
        if isinstance(self.target, list) and len(self.target) == len(self):
            by_image.append("target")
        return replace(self, **{name: cut(getattr(self, name)) for name in by_image})

    @property
    def comparisons(self) -> dict[str, dict[str, Comparison]]:
        """The comparison of the map with each control, by metric and control, adjusted for their number."""
        return adjust([self.unadjusted])[0]

    @cached_property
    def unadjusted(self) -> dict[str, dict[str, Comparison]]:
        """The same comparisons, each by itself, for a correction together with those of other calls."""
        found: dict[str, dict[str, Comparison]] = {}
        for name, each in self.controls.items():
            values, about = self.values[name], (self.spread[name], self.random_values.get(name), METRICS[name].higher)
            found[name] = {control: compare(control, values, other, *about) for control, other in each.items()}
        return found

    @property
    def verdict(self) -> Verdict:
        """What the comparisons with the controls support; `judge` adds what else is known about the maps."""
        return judge_comparisons(self.comparisons)

    @property
    def results(self) -> dict[str, dict[str, str]]:
        """The verdict of each comparison, by metric and control, as in `Facts.comparisons`."""
        return results_of(self.comparisons)

    def pixel_ranks(self) -> Tensor:
        """Return the rank of each pixel of the maps, [N, H, W] int32, 0 for the first one that is deleted or inserted.

        Equal values are in random order, given by the seed of the evaluation.
        """
        return torch.stack([ranks(each, int(self.options["seed"])) for each in self.maps])

    def mean_and_error(self, metric: str, control: str | None = None) -> tuple[float, float]:
        """Return the mean of a metric over the images that have a value, and its standard error s / √n.

        Of the map, or of a control. The error is NaN for fewer than two images.
        """
        values = self.values[metric] if control is None else self.controls[metric][control]
        return mean_and_error(values[values.isfinite()])

    def compare(self, metric: str, control: str) -> Comparison:
        """Return the comparison with one control by one metric, adjusted for the number of all comparisons."""
        return self.comparisons[metric][control]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row for each image and metric: its value, those of the controls, the spread, and the verdicts."""
        rows = []
        for index in range(len(self)):
            one = self[index]
            comparisons = one.comparisons
            for name, value in one.values.items():
                row = {"image": index, "metric": name, "value": float(value[0])}
                for control, other in one.controls.get(name, {}).items():
                    row[control] = float(other[0])
                    row[f"beside_{control}"] = comparisons[name][control].verdict
                if name in one.spread:
                    row["spread"] = float(one.spread[name][0])
                rows.append(row | {"reason": one.reasons[name][0]})
        return rows

    def unit(self, metric: str) -> str:
        """Return the unit of a metric's values: which probability it is, or that it is the score of the target."""
        known, target = METRICS[metric], self.target
        score = str(self.options.get("score"))
        if known.score == "target" and score in ("identity", "log"):
            return known.unit.replace("logit", UNITS[score])
        if known.score != "probability" or "probability" not in known.unit or target is None:
            return known.unit
        if isinstance(target, str):  # its values are used as they are
            word = "probability" if target.startswith("Probability(") else "score of the target"
        else:
            word = WORDS.get(score, "probability")
        return known.unit.replace("probability", word)

    def sentence(self, metric: str) -> str:
        """Return one line with the value of a metric and the comparison with the controls."""
        known = self.values[metric][self.values[metric].isfinite()]
        title = METRICS[metric].title
        if not len(known):
            reason = next((reason for reason in self.reasons[metric] if reason), "no value")
            return f"{title}: {reason}"
        mean, error = self.mean_and_error(metric)
        number = f"{mean:.3g}" if len(known) == 1 else f"{mean:.3g} ± {error:.2g} over {len(known)} images"
        found = {control: each.verdict for control, each in self.comparisons.get(metric, {}).items()}
        return f"{title} {number}" + (f": {describe_results(found)}" if found else "")

    def __str__(self) -> str:
        verdict = [self.verdict.sentence] if self.verdict.facts.is_tested else []
        return "\n".join([*verdict, *map(self.sentence, self.values)])

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return a sentence and a row for each metric, the curves, and the findings."""
        controls = list(dict.fromkeys(name for each in self.controls.values() for name in each))
        comparisons, rows = self.comparisons, []
        for name, values in self.values.items():
            row: list[Any] = [name, float(values.double().nanmean())]
            for control in controls:
                other, compared = self.controls.get(name, {}).get(control), comparisons.get(name, {}).get(control)
                row.append(None if other is None else float(other.double().nanmean()))
                row.append("" if compared is None else compared.verdict)
            rows.append(row)
        heads = ["metric", "map", *(head for name in controls for head in (name, f"compared with {name}"))]
        parts = [paragraphs([f"Target: {target_name(self.target, labels)}.", *str(self).splitlines()])]
        parts += [table_html(heads, rows), charts_html(self.charts())]
        parts += [findings_html(name_classes(each.sentence, labels) for each in self.findings)]
        return Display("".join(parts), repr(self), charts_images(self.charts()))

    def charts(self) -> list[Chart]:
        """Return the mean curves of the map and its controls as charts, for each metric that is an area."""
        found: list[Chart] = []
        for name, curves in self.curves.items():
            controls = self.control_curves.get(name, {}).items()
            lines = {"map": mean_curve(curves), **{control: mean_curve(each) for control, each in controls}}
            found += line_chart(name, lines, x="share of the pixels", y="score")
        return found

    def __repr__(self) -> str:
        count = len(self)
        numbers = ", ".join(f"{name} {mean_and_error(value)[0]:.3g}" for name, value in self.values.items())
        return f"Evaluation({self.method or 'maps'} on {count} image{'s' * (count > 1)}: {numbers})"


def as_slice(index: int | slice, count: int) -> slice:
    """Convert an index or slice to a slice of `count` images.

    Errors   IndexError
    """
    chosen = range(count)[index]
    if isinstance(chosen, int):
        return slice(chosen, chosen + 1)
    if chosen.step != 1:
        raise BadOption(f"Slices with a step of {chosen.step} are not supported. Give consecutive images: [2:5].")
    return slice(chosen.start, max(chosen.start, chosen.stop))


class Parts:
    """The results of one metric by name of the candidates, [K, N, ...] for the K candidates with that name."""

    def __init__(self, found: Measurement, names: Sequence[str], count: int, *, is_complete: bool) -> None:
        self.found, self.count, self.is_complete = found, count, is_complete
        rows = {name: [k for k, each in enumerate(names) if each == name] for name in ("", *CONTROLS)}
        self.values, self.curves = (
            {name: numbers.unflatten(0, (-1, count))[own] for name, own in rows.items() if own and numbers is not None}
            for numbers in (found.values, found.curves)
        )

    def find_reasons(self, stop_reason: str) -> list[str]:
        """Return why each value of the caller's maps is NaN or uses fewer samples than requested, [N]."""
        missing = NOT_FINITE if self.is_complete else stop_reason
        has_fewer = self.found.is_sampled and not self.is_complete
        partial = f"uses fewer samples than requested: {stop_reason}" if has_fewer else ""
        nan = self.values[""].mean(0).isnan().tolist()
        return [self.found.reasons.get(row, missing if nan[row] else partial) for row in range(self.count)]


def means_of_controls(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean [N, ...] over the maps of each control."""
    return {name: each.mean(0) for name, each in numbers.items() if name}
