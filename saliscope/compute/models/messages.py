"""Labels and messages of the comparison of two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saliscope.percentages import number

if TYPE_CHECKING:
    from explainers import ModelComparison
    from saliscope.compute.answers import LoadedModel

TITLE, PART = "Two models", "Models"
NO_OTHER = "Choose a second model."
SAME = "Both models are {title}. Choose another second model."
ONLY_CLASSIFIERS = "{title} does not classify whole images, so its predictions cannot be compared. Choose a classifier."
NO_METHOD = "No quick method explains both models, so their maps cannot be compared."
YOUR_IMAGE = "Image of the page"
EXAMPLES = "Include the examples."
OTHER_LAYERS = (
    "The models do not have the same layers with the same output sizes, so outputs are not compared layer by layer."
)
OTHER_CROPS = (
    "The models receive different crops of the images, and maps are compared in the coordinates of the crops. This "
    "lowers the correlation."
)
NONE_DIFFERS = "The outputs of all {count} layers are equal (relative difference at most {tolerance:g})."

TERMS = {
    "title": TITLE,
    "about": "Model A is the model of the page. Both explain the prediction of model A.",
    "other": "Model B",
    "examples": "Include the nine examples",
    "compare": "Compare models",
    "stop": "Stop",
    "waiting": "Computing …",
    "old": "Outdated: the settings of the page have changed. Press Compare models.",
    "maps": "{name}: map of {model}",
    "maps_about": "Each map has its own color range. “Map correlation” is the rank correlation of the two maps.",
    "start": "Choose a second model and press Compare models.",
    "predictions": "Predictions",
    "columns": ["Image", "Map of A", "Map of B", "Model A", "Model B", "Prediction", "Map correlation"],
    "same": "same",
    "differs": "differs",
    "similarity": "Layer similarity (linear CKA)",
    "similarity_about": (
        "1: equal up to rotation and scale. 0: unrelated. Rows: stages of A. Columns: stages of B. In parentheses: the "
        "95% interval, or only the interval if it includes 0."
    ),
    "differences": "Relative difference of each layer",
    "layer": "Layer",
    "difference": "Difference",
    "estimate": "Unbiased estimate: {value}",
}
"""Labels used by page/models/models.js."""


def comparing(a: LoadedModel, b: LoadedModel, images: int) -> str:
    """Return the status of a comparison."""
    return f"Comparing {a.title} and {b.title} on {images} image{'s' * (images != 1)} …"


def other_order(count: int) -> str:
    """Return why models with the same classes in another order are not compared."""
    return (
        f"The models have the same {count} classes in another order, so equal positions mean different classes. Choose "
        "a model with the same order."
    )


def other_classes(a: LoadedModel, b: LoadedModel) -> str:
    """Return why models with different numbers of classes are not compared."""
    return (
        f"{a.title} has {len(a.names)} classes and {b.title} has {len(b.names)}, so predictions cannot be compared. "
        "Choose two models with the same classes."
    )


def other_names(different: int, count: int) -> str:
    """Return the note on classes with different names."""
    return f"{different} of {count} classes have different names. Classes at the same position are compared."


def other_method(wanted: str, used: str) -> str:
    """Return the note on a method that is not used."""
    return f"{wanted} is slow or does not explain both models, so maps are those of {used}."


def summary(found: ModelComparison, title: str) -> str:
    """Return the result in one or two sentences."""
    count, changed = len(found.scores_a), len(found.changed)
    known = found.map_correlations[~found.map_correlations.isnan()]
    text = f"The predictions differ for {changed} of {count} image{'s' * (count != 1)}."
    if len(known):
        images = "" if len(known) == count else f" over {len(known)} of {count} images"
        kind = "Mean rank" if len(known) > 1 else "Rank"
        return f"{text} {kind} correlation of {title}{images}: {number(float(known.mean()), '.2f')}."
    return f"{text} Maps of {title} were not compared: {found.map_notes[0]}."


def similarity_notes(found: ModelComparison) -> list[str]:
    """Return why the similarity of layers is not known, and how many intervals show that layers are related."""
    count = len(found.scores_a)
    notes = [found.similarity_note] if found.similarity_note else []
    known = int(found.similarity.isfinite().sum())
    if known:
        above = int((found.similarity_interval[..., 0] > 0).sum())
        notes.append(
            f"{above} of {known} intervals are above 0, from {count} images. More images make them shorter: "
            "compare_models takes any number."
        )
    return notes if count > 1 else [*notes, EXAMPLES]


def divergence(found: ModelComparison, tolerance: float, same_inputs: bool) -> str:
    """Return the first layer that differs."""
    if not found.differences:
        return OTHER_LAYERS
    first = found.first_difference
    if first is None:
        return NONE_DIFFERS.format(count=len(found.differences), tolerance=tolerance)
    text = f"The first layer that differs is {first} (relative difference {found.differences[first]:.2g})."
    return text if same_inputs else f"{text} The inputs of the models differ already, by their preprocessing."
