"""The content of the page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from saliscope.datasets.compare import statistics
from saliscope.datasets.compare.comparing import CHANGED, GAINED, LOST, ONLY_A, ONLY_B, UNREADABLE, Comparison, Shown
from saliscope.datasets.compare.texts import (
    accuracy_lines,
    differences,
    interval_text,
    map_lines,
    mcnemar_text,
    number_of,
    p_text,
)
from saliscope.datasets.report import images
from saliscope.datasets.report.analysis.maps import MOST, pack, pool
from saliscope.datasets.report.analysis.summary import Rate
from saliscope.datasets.report.text import number, percent, plural
from saliscope.datasets.rows import map_of

if TYPE_CHECKING:
    from saliscope.datasets.compare.alignment import Alignment
    from saliscope.datasets.finished.finished_run import FinishedRun
    from saliscope.zoo import Model

CLASSES, TRANSITIONS = 300, 100
"""Maximum number of rows of the tables; the Parquet file has all images."""
KINDS = {
    GAINED: ("Gained", "wrong in A and correct in B, the most confident in B first"),
    LOST: ("Lost", "correct in A and wrong in B, the most confident in B first"),
    CHANGED: ("Other changes", "another prediction in B that is wrong in both runs, or without a label in both runs"),
    "maps": ("Largest disagreements of maps", "same prediction, lowest rank correlation of the maps first"),
}


def gather(result: Comparison, runs: Sequence[FinishedRun], alignment: Alignment, table: str) -> dict[str, Any]:
    """Return the variables of the template, and the data of its script."""
    pictures = _Pictures(runs)
    kinds = [_kind(name, result, pictures) for name in KINDS]
    classes, class_note = class_table(result)
    transitions = [
        {"a": a, "b": b, "count": count, "share": percent(count / max(1, result.compared))}
        for (a, b), count in sorted(result.transitions.items(), key=lambda item: (-item[1], str(item[0])))[:TRANSITIONS]
    ]
    hidden = len(result.transitions) - len(transitions)
    names = [_name(run) for run in runs]
    return {
        "title": f"{names[0]} and {names[1]} – Saliscope",
        "heading": f"A: {names[0]}. B: {names[1]}",
        "subtitle": f"A is {str(runs[0].data.folder)!r}, B is {str(runs[1].data.folder)!r}. All images: {table}.",
        "tiles": _tiles(result),
        "highlights": [*accuracy_lines(result), *map_lines(result, alignment), *_remarks(result)],
        "classes": classes,
        "classes_note": class_note,
        "transitions": transitions,
        "no_transitions": (
            f"No prediction changed in {plural(result.compared, 'image')} that both runs could read."
            if result.compared
            else "Not tested: no image could be read by both runs."
        ),
        "transitions_note": f"The first {TRANSITIONS} of {len(result.transitions):,} are shown." if hidden else "",
        "kinds": [kind for kind in kinds if kind["count"]],
        "differences": differences([run.data for run in runs]),
        "pictures_note": pictures.note(),
        "data": {"images": pictures.images, "maps": pictures.maps},
    }


def _name(run: FinishedRun) -> str:
    settings = run.data.manifest["settings"]
    layer = f" at {settings['layer']}" if settings.get("layer") else ""
    return f"{settings.get('model', 'unknown model')}, {settings.get('method', 'unknown method')}{layer}"


def _tiles(result: Comparison) -> list[dict[str, str]]:
    paired, compared = result.pairing.paired, result.compared
    alone = f"{result.changes[ONLY_A]:,} only in A, {result.changes[ONLY_B]:,} only in B"
    tiles = [{"name": "Images in both runs", "value": f"{paired:,}", "note": alone}]
    if compared:
        rate = Rate(compared - result.agree, compared)
        low, high = rate.interval
        note = f"{rate.correct:,} of {compared:,}; 95% interval {100 * low:.1f} to {100 * high:.1f}%"
        tiles.append({"name": "Predictions changed", "value": f"{100 * rate.value:.1f}%", "note": note})
    if labeled := result.total("labeled"):
        gained, lost = result.total("gained"), result.total("lost")
        value = f"{100 * (gained - lost) / labeled:+.1f} points".replace("-", "−")
        note = f"{gained:,} gained, {lost:,} lost; {mcnemar_text(gained, lost)}"
        tiles.append({"name": "Accuracy, B − A", "value": value, "note": note})
    else:
        tiles.append(
            {
                "name": "Accuracy, B − A",
                "value": "–",
                "note": "not compared: no image has a label that both networks have",
            }
        )
    mean = result.correlation.mean()
    if mean is not None:
        note = f"{interval_text(mean)}; {plural(mean.count, 'image')}"
        tiles.append({"name": "Rank correlation of maps", "value": number_of(mean.value), "note": note})
    else:
        note = "not compared: no image with the same prediction has two maps that can be compared"
        tiles.append({"name": "Rank correlation of maps", "value": "–", "note": note})
    return tiles


def _remarks(result: Comparison) -> list[str]:
    """Return what the numbers leave out."""
    pairing = result.pairing
    counts = [
        (result.changes[ONLY_A], "only in A. They are in the Parquet file and in no other number."),
        (result.changes[ONLY_B], "only in B. They are in the Parquet file and in no other number."),
        (result.changes[UNREADABLE], "in both runs, but at least one run could not read them."),
        (result.other_content, "with the same key and another content: the file changed between the runs."),
        (result.other_labels, "with different labels in both runs. They do not count for the accuracies."),
        (pairing.repeated, "with the same content as another image. They are left out."),
    ]
    return [f"{plural(count, 'image')} {text}" for count, text in counts if count]


def class_table(result: Comparison) -> tuple[list[dict[str, Any]], str]:
    """Return the table of classes and its note. Classes with changes are tested, and their p-values are adjusted."""
    from explainers import holm  # torch takes seconds to start

    tested = [(name, each) for name, each in sorted(result.classes.items()) if each.gained + each.lost]
    p_values = [statistics.mcnemar(each.gained, each.lost) for _, each in tested]
    adjusted = dict(zip([name for name, _ in tested], holm(p_values), strict=True))
    rows: list[dict[str, Any]] = []
    for name, each in result.classes.items():
        n, p = each.labeled, adjusted.get(name)
        bounds = statistics.paired_difference(each.gained, each.lost, n) if n else None
        rows.append(
            {
                "name": name,
                "labeled": n,
                "a": percent(each.correct_a / n) if n else "",
                "b": percent(each.correct_b / n) if n else "",
                "difference": _points(bounds[0]) if bounds else "",
                "difference_value": bounds[0] if bounds else "",
                "interval": f"{_points(bounds[1])} to {_points(bounds[2])}" if bounds else "",
                "gained": each.gained,
                "lost": each.lost,
                "changed": each.changed,
                "p": "" if p is None else p_text(p, "").strip(),
                "p_value": "" if p is None else p,
                "significant": p is not None and p < statistics.LEVEL,
                "correlation": number_of(each.correlation / each.maps) if each.maps else "",
                "correlation_value": each.correlation / each.maps if each.maps else "",
            }
        )
    rows.sort(key=lambda row: (row["p_value"] if row["p_value"] != "" else 2.0, -row["changed"], row["name"]))
    cut = f" The first {CLASSES} of {len(rows):,} are shown." if len(rows) > CLASSES else ""
    labeled = plural(result.total("labeled"), "image")
    test = f"Classes were not tested: none of {labeled} with a label that both networks have was gained or lost"
    if tested:
        of = f"{len(tested):,} of {plural(len(rows), 'class')}"
        test = f"p is that of McNemar's exact test, adjusted for the {of} with gained or lost images (Holm)"
    note = (
        f"By label; images without a label count by their prediction in A. {test}. The intervals of the differences "
        f"(Bonett and Price 2012) are 95% intervals of one class and are not adjusted.{cut}"
    )
    return rows[:CLASSES], note


def _points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def _kind(name: str, result: Comparison, pictures: _Pictures) -> dict[str, Any]:
    title, order = KINDS[name]
    shown = result.shown[name].sorted()
    count = result.changes[name] if name != "maps" else int(result.correlation.counts.sum())
    cut = f"; {len(shown)} of {count:,} are shown" if count > len(shown) else ""
    note = f"{plural(count, 'image')}: {order}{cut}."
    return {"id": name, "title": title, "count": count, "note": note, "cards": pictures.cards(shown)}


class _Pictures:
    """The images and maps on the page."""

    def __init__(self, runs: Sequence[FinishedRun]) -> None:
        self.runs = runs
        self.images: list[dict[str, Any]] = []
        self.maps: list[dict[str, Any]] = []
        self.models = [run.try_model() for run in runs]
        self.missing = self.requested = 0

    def note(self) -> str:
        """Return what is not shown, or an empty text."""
        notes = []
        if self.missing:
            notes.append(
                f"{self.missing} of {plural(self.requested, 'image')} are not available anymore or have changed."
            )
        if any(model is None for model in self.models):
            notes.append("A network is not available, so its maps are drawn without the image.")
        return " ".join(notes)

    def cards(self, shown: Sequence[Shown]) -> list[dict[str, Any]]:
        """Return the texts and the indices of the images and maps of some rows."""
        tables = [run.data.take([each.rows[k] for each in shown]).to_pylist() for k, run in enumerate(self.runs)]
        return [self._card(each, rows) for each, *rows in zip(shown, *tables, strict=True)]

    def _card(self, shown: Shown, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        row = shown.row
        found = (run.image(row["path"], row["sha256"]) for run, row in zip(self.runs, rows, strict=True))
        image = next(filter(None, found), None)
        self.requested += 1
        self.missing += image is None
        figures = []
        for letter, record, model in zip("ab", rows, self.models, strict=True):
            probability = percent(record["probability"])
            caption = f"{letter.upper()}: {row[f'prediction_{letter}']} {probability}"
            figures.append({"caption": caption, "correct": record["correct"], **self._figure(image, record, model)})
        values = [row["rank_correlation"], row["top_overlap"]]
        agreement = f"maps not compared: {row['map_note']}" if row["map_note"] else ""
        if values[0] is not None:
            agreement = f"rank correlation {number_of(values[0])}, {percent(values[1])} of the highest cells in common"
        photo = self._photo(image, None)
        label = row["label"] if row["label"] is not None else row["label_b"]
        return {"path": row["path"], "label": label, "photo": photo, "figures": figures, "agreement": agreement}

    def _figure(self, image: Any, record: dict[str, Any], model: Model | None) -> dict[str, Any]:
        if record["map"] is None:
            return {"map": None, "photo": None}
        stored = map_of({**record, "map_scale": 1.0 if record["map_scale"] is None else record["map_scale"]})
        values = np.where(np.isfinite(stored), stored, 0.0).astype(np.float64)
        size = min(MOST, values.shape[0]), min(MOST, values.shape[1])
        self.maps.append(pack(pool(values, size)))
        photo = self._photo(image, model) if model is not None else None
        return {
            "map": len(self.maps) - 1,
            "photo": photo,
            "low": number(float(values.min())),
            "high": number(float(values.max())),
        }

    def _photo(self, image: Any, model: Model | None) -> int | None:
        if image is None:
            return None
        data, width, height = images.small(images.crop(image, model), images.budget(300))
        self.images.append({"image": data, "w": width, "h": height})
        return len(self.images) - 1
