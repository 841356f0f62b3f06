"""The comparison of the model of the page with a second one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from saliscope.compute import messages as page_messages
from saliscope.compute import network_calls
from saliscope.compute.answers import LoadedModel
from saliscope.compute.jobs.runs import Run
from saliscope.compute.models import engine, messages
from saliscope.compute.request import LONGEST
from saliscope.page.components import view as page_view
from saliscope.page.events import Ask, answer_newest, on, stop_on
from saliscope.page.models import parts
from saliscope.page.wire import Updates
from saliscope.percentages import number

SIDE = 96  # pixels of the longer side of a thumbnail


@on(parts.MODELS, "submit")
def compare(ask: Ask) -> Iterator[Updates]:
    """Compare two models on the image of the page and the examples; a new comparison replaces the previous one."""
    other, with_examples = ask.text("other", LONGEST + 1), ask.data.get("examples") is not False
    name = other if len(other) <= LONGEST else ""

    def work(run: Run) -> Iterator[Any]:
        return engine.compare(ask.question(), name, run, with_examples=with_examples)

    yield from answer_newest(ask, parts.MODELS, "models", work, compared)


stop_on(parts.MODELS, "models")


def compared(step: engine.Compared) -> dict[str, Any]:
    """Pack the result: a row for each image, the similarity of the stages, and the differences of the layers."""
    found, by_size = step.result, step.method.by_size
    (classes_a, classes_b), correlations = found.predictions, found.map_correlations.tolist()
    rows = [
        {
            "name": name,
            "crops": [page_view.jpeg(crops[k], SIDE)["src"] for crops in step.crops],
            "maps": [page_view.small_map(maps[k].float(), by_size) for maps in (found.maps_a, found.maps_b)],
            "a": _prediction(step.a, found.scores_a[k], classes_a[k]),
            "b": _prediction(step.b, found.scores_b[k], classes_b[k]),
            "same": classes_a[k] == classes_b[k],
            "correlation": found.map_notes[k] or number(correlations[k], ".2f"),
            "unknown": bool(found.map_notes[k]),
        }
        for k, name in enumerate(step.names)
    ]
    estimates, lower = found.similarity.tolist(), found.similarity_interval[..., 0].tolist()
    similarity = [
        [_similarity(*each) for each in zip(*row, strict=True)]
        for row in zip(found.similarity_texts, estimates, lower, strict=True)
    ]
    return {
        "text": messages.summary(found, step.method.title),
        "models": [step.a.title, step.b.title],
        "notes": list(step.notes),
        "rows": rows,
        "layers": [found.layers_a, found.layers_b],
        "similarity": similarity if found.similarity.isfinite().any() else None,
        "similarity_notes": messages.similarity_notes(found),
        "divergence": messages.divergence(found, engine.TOLERANCE, step.same_inputs),
        "differences": [[name, f"{value:.2g}"] for name, value in found.differences.items()],
        "first": found.first_difference,
    }


def _prediction(loaded: LoadedModel, scores: Any, index: int) -> str:
    """Return the predicted class and its probability."""
    probabilities = network_calls.probabilities(loaded, scores)
    return f"{loaded.names[index]}, {page_messages.class_score(float(probabilities[index]), loaded)}"


def _similarity(text: str, estimate: float, low: float) -> dict[str, Any]:
    """Pack the similarity of two layers: its text, the estimate, and the share of the color, 0 if it may be 0."""
    known = math.isfinite(estimate)
    return {
        "text": text,
        "estimate": number(estimate, ".2f") if known else "",
        "share": round(estimate, 3) if known and low > 0 else 0.0,
    }
