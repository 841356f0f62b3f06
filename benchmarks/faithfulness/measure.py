"""Deletion and insertion of every method, image by image, compared with the controls of the same image.

Results are in a JSON file outside the repository, so that a run resumes where another stopped. They are written as the
page's JSON and as the table of docs/faithfulness.md.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

import explainers
from benchmarks import filled
from explainers import Method
from explainers.metrics.comparison import LEVEL, holm, mean_and_error, sign_flip_test
from explainers.metrics.metric import EvaluationSettings
from explainers.metrics.run import Evaluator, evaluator
from saliscope.compute.methods import costs
from saliscope.compute.methods.badges import FILE as VERDICTS
from saliscope.zoo import Model

METRICS = ("deletion", "insertion")
STEPS = 12
CONTROLS = {"random_control": "random", "edge_control": "edge", "center_control": "center"}
"""Methods that are controls: all other methods are compared with their results."""
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faithfulness.md"
COLUMNS = "method", "the question it answers", "forwards", "needs", "n", "deletion ↓", "insertion ↑"
COLUMNS += "random, edges, center", "logit", "cascade"
ENOUGH = 100
"""The number of images from which "not better than every control" is a result: with thirty images, a difference of two
standard errors is still not significant. Fewer images can be enough to show that a method is better.
"""
SIGNS = {"better": "+", "level": "=", "worse": "−"}

QUESTIONS: dict[str, list[str]] = json.loads(Path(__file__).with_name("questions.json").read_text("utf-8"))
"""Methods by the question that they answer; each method appears once."""

Verdict = dict[str, Any]


class Photo(NamedTuple):
    """One image: its name, the network's input [1, C, H, W] and the predicted class."""

    name: str
    image: Tensor
    target: int


def paths(folder: Path, limit: int | None = None) -> list[Path]:
    """Return the images of a folder and its subfolders, sorted by path; with a limit, evenly spaced ones."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if limit and limit < len(found):
        found = [found[index * len(found) // limit] for index in range(limit)]
    return found


def photographs(model: Model, files: Iterable[Path]) -> Iterator[Photo]:
    """Yield the images, each read when it is needed."""
    for path in files:
        with Image.open(path) as file:
            image = prepare(model, file.convert("RGB"))
        with torch.no_grad():
            target = int(model.network(image).argmax())
        yield Photo(path.stem, image, target)


def prepare(model: Model, image: Image.Image) -> Tensor:
    """Return the image as input; an image smaller than the input is enlarged to it and not cropped."""
    if min(image.size) >= model.side:
        return model.prepare(image)
    return replace(model.preparation, resize=model.side).tensor(image)


class Cache:
    """`results[method][photo]`, `controls[photo]`, `randomization[method][photo]` and `reasons[method]`.

    All results are of one network and one number of steps; a file with other settings raises an error.
    """

    PARTS = ("results", "controls", "reasons", "randomization")

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if known and known["settings"] != settings:
            raise SystemExit(f"{path} has results for {known['settings']}, not for {settings}. Use another --cache.")
        self.path, self.settings = path, settings
        self.results, self.controls, self.reasons, self.randomization = (known.get(part, {}) for part in self.PARTS)

    def save(self) -> None:
        """Write the file atomically."""
        parts = {name: getattr(self, name) for name in ("settings", *self.PARTS)}
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(parts), encoding="utf-8")
        os.replace(temporary, self.path)


def measure(model: Model, photo: Photo, methods: Sequence[Method], cache: Cache, precision: str) -> None:
    """Add the missing results of one image: the areas of every method and of the controls."""
    known = {name for name, rows in cache.results.items() if photo.name in rows} | set(cache.reasons)
    missing = [method for method in methods if method.name not in known]
    if missing:
        settings = EvaluationSettings(target=photo.target, metrics=METRICS, steps=STEPS, precision=precision)
        with evaluator(model.network, photo.image, settings) as judge:
            for method in missing:
                if (row := areas(model, photo, method, judge, cache)) is not None:
                    cache.results.setdefault(method.name, {})[photo.name] = row


def areas(model: Model, photo: Photo, method: Method, judge: Evaluator, cache: Cache) -> dict[str, Any] | None:
    """Return the areas of one method, or None if it has none; the cache then stores the reason."""
    reason = method.applies(model.network) or ""
    # These run on every network, but differ from LRP only in their rules for attention.
    if method.name in ("attn_lrp", "cp_lrp") and explainers.METHODS["attention_rollout"].applies(model.network):
        reason = f"made for attention between tokens, which {type(model.network).__name__} does not have"
    if method.returns == "channels":
        reason = "one value per channel, not a map"
    start = time.perf_counter()
    try:
        if reason:
            raise explainers.BadOption(reason)
        explanation = explainers.explain(method.name, model.network, photo.image, photo.target, compare=False)
        seconds = time.perf_counter() - start
        found = judge(explanation)
    except explainers.ExplainerError as error:
        cache.reasons[method.name] = str(error).partition(". ")[0]
        return None
    shown = CONTROLS.values()
    rows: dict[str, Any] = {control: {name: found.controls[name][control] for name in METRICS} for control in shown}
    rows["spread"] = {name: found.spread[name] for name in METRICS}
    rounded = {row: {name: round(float(value[0]), 6) for name, value in each.items()} for row, each in rows.items()}
    cache.controls.setdefault(photo.name, rounded)
    return {name: round(float(found.values[name][0]), 6) for name in METRICS} | {"seconds": round(seconds, 4)}


def randomize(model: Model, photo: Photo, methods: Sequence[Method], cache: Cache) -> None:
    """Add the missing rank correlations of one image: after the last layer, and after all layers, are randomized."""
    for method in methods:
        known = cache.randomization.setdefault(method.name, {})
        if photo.name in known or method.name in cache.reasons:
            continue
        try:
            found = explainers.randomization_test(model.network, photo.image, method.name, target=photo.target, seeds=1)
        except explainers.ExplainerError as error:
            known[photo.name] = {"reason": str(error).partition(". ")[0]}
            continue
        ends = {"logit": found.after_last_layer, "cascade": found.after_all_layers}
        known[photo.name] = {name: None if math.isnan(value) else round(value, 4) for name, value in ends.items()}
        cache.save()


# The page and the table


def question(method: str) -> str:
    """Return the question of a method."""
    return next(text for text, names in QUESTIONS.items() if method in names)


def verdicts(cache: Cache) -> dict[str, Any]:
    """Return the results of the page and of the table by method, in the order of METHODS."""
    methods = {name: verdict(cache, name) for name in explainers.METHODS}
    adjust(methods)
    settings = {name: cache.settings[name] for name in ("network", "precision", "steps")}
    return settings | {"photographs": len(cache.controls), "test": "sign-flip test", "methods": methods}


def verdict(cache: Cache, name: str) -> Verdict:
    """Return the areas of one method, its comparison with each control, and whether it depends on the weights."""
    method, rows = explainers.METHODS[name], cache.results.get(name, {})
    if name in CONTROLS:
        rows = {photo: beside[CONTROLS[name]] for photo, beside in cache.controls.items()}
    found: Verdict = {"reads_class": method.reads_class, "n": len(rows), "better_than_controls": None}
    found |= {"depends_on_last_layer": None, "depends_on_weights": None}
    if name in cache.reasons:
        return found | {"reason": cache.reasons[name]}
    for metric in METRICS if rows else ():
        found[metric] = rounded(mean_and_error(torch.tensor([row[metric] for row in rows.values()])))
    if name not in CONTROLS and rows:
        found["beside"] = {control: compare(cache, rows, control) for control in CONTROLS.values()}
    rows_of_test = [row for row in cache.randomization.get(name, {}).values() if "reason" not in row]
    for end in ("logit", "cascade"):
        values = [row[end] for row in rows_of_test if row[end] is not None]
        found[end] = round(sum(values) / len(values), 3) if values else None
    if found["logit"] is not None and found["cascade"] is not None:
        limits = explainers.Randomization
        last = abs(found["logit"]) < limits.LAST_LAYER
        all_layers = abs(found["cascade"]) < limits.ALL_LAYERS
        found |= {"depends_on_last_layer": last, "depends_on_weights": last and all_layers}
    return found


def compare(cache: Cache, rows: dict[str, Any], control: str) -> Verdict:
    """Return the paired difference of insertion - deletion to that of a control, and the p-value of this comparison."""
    differences = torch.tensor([gain(row) - gain(cache.controls[photo][control]) for photo, row in rows.items()])
    p = sign_flip_test(differences)
    return {"difference": rounded(mean_and_error(differences)), "p": None if math.isnan(p) else float(f"{p:.2g}")}


def adjust(methods: dict[str, Verdict]) -> None:
    """Add the verdicts, with p-values adjusted for the number of all comparisons of the table."""
    compared = [each for one in methods.values() for each in one.get("beside", {}).values()]
    adjusted = holm([math.nan if each["p"] is None else each["p"] for each in compared])
    for each, p in zip(compared, adjusted, strict=True):
        each["p_adjusted"] = None if math.isnan(p) else float(f"{p:.2g}")
        each["verdict"] = "level" if not p < LEVEL else "better" if each["difference"][0] > 0 else "worse"
    for one in methods.values():
        if "beside" in one:
            better = all(each["verdict"] == "better" for each in one["beside"].values())
            one["better_than_controls"] = better if better or one["n"] >= ENOUGH else None


def gain(row: dict[str, float]) -> float:
    """Return insertion minus deletion: the area between the curves."""
    return row["insertion"] - row["deletion"]


def rounded(pair: Iterable[float]) -> list[float | None]:
    """Round to four digits; NaN becomes null, since JSON has no NaN."""
    return [None if math.isnan(value) else round(value, 4) for value in pair]


def table(found: dict[str, Any]) -> list[str]:
    """Return the rows of the table, best first; methods without results follow with their reasons."""
    methods = found["methods"]
    ranks = {name: one["deletion"][0] - one["insertion"][0] if one["n"] else math.inf for name, one in methods.items()}
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for name in sorted(methods, key=lambda name: ranks[name]):
        one, method, passes = methods[name], explainers.METHODS[name], costs.table()["passes"].get(name)
        needs = {"attention": method.family == "attention", "a layer": method.takes_layer}
        needs["a gradient"] = method.gradients
        title, cost = f"**`{name}`**" if name in CONTROLS else f"`{name}`", "" if passes is None else amount(passes)
        cells = [title, question(name), cost]
        cells.append(", ".join(word for word, holds in needs.items() if holds) or "only scores")
        if "reason" in one or not one["n"]:
            cells += ["0", one.get("reason", "not measured"), "", "", "", ""]
        else:
            beside = [SIGNS[each["verdict"]] for each in one.get("beside", {}).values()]
            cells += [str(one["n"]), figure(one["deletion"]), figure(one["insertion"]), " ".join(beside)]
            cells += ["" if one[end] is None else f"{one[end]:.2f}" for end in ("logit", "cascade")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def figure(pair: list[float | None]) -> str:
    """Format mean ± standard error."""
    mean, error = pair
    return f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"


def about(found: dict[str, Any]) -> str:
    """Return the line above the table."""
    count = sum(len(one.get("beside", {})) for one in found["methods"].values())
    return (
        f"{found['network']}, {found['photographs']} images, {found['steps']} steps from and to a blurred copy, "
        f"probability of the predicted class, in {found['precision']}; mean ± standard error over n images; "
        f"{found['test']}, p-values adjusted for {count} comparisons."
    )


def replace_table(page: str, found: dict[str, Any]) -> str:
    """Return docs/faithfulness.md with the table of these results."""
    return filled(page, "verdicts", [about(found), "", *table(found)])


def amount(passes: float) -> str:
    """Format a number of forward passes."""
    return f"{passes:.1f}" if passes < 10 else f"{float(f'{passes:.2g}'):,.0f}"


def text(found: dict[str, Any]) -> str:
    """Return the page's results as JSON, one line per method."""
    head = json.dumps({name: value for name, value in found.items() if name != "methods"})[:-1]
    lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in found["methods"].items()]
    return f'{head}, "methods": {{\n' + ",\n".join(lines) + "\n}}\n"


def write(found: dict[str, Any]) -> None:
    """Write the page's results and the table."""
    VERDICTS.write_text(text(found), encoding="utf-8")
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
