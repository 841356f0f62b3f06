"""The parts of the gradient lab."""

from __future__ import annotations

from dataclasses import asdict

from saliscope import limits
from saliscope.compute.lab import experiments, presets
from saliscope.compute.lab import messages as lab_messages
from saliscope.page.elements import Part

EXPRESSION = Part(
    "lab/expression",
    "hl-expression",
    terms=lab_messages.FORM | {"text": lab_messages.EXPRESSION_TEXT},
    gallery=[
        {
            "id": name,
            "title": lab_messages.EXPERIMENTS[name][0],
            "says": lab_messages.EXPERIMENTS[name][1],
            "settings": asdict(experiment),
        }
        for name, experiment in experiments.GALLERY.items()
    ],
    hooks=lab_messages.HOOKS,
    amounts={hook: [*ends, lab_messages.amount_range(hook, *ends)] for hook, ends in experiments.AMOUNTS.items()},
    again=lab_messages.AGAIN,
    longest=limits.EXPRESSION_LENGTH,
)
TRAINING = Part(
    "lab/training",
    "hl-training",
    terms=lab_messages.TRAINING_FORM | {"text": lab_messages.TRAINING_TEXT},
    presets=[
        {"id": name, "title": lab_messages.PRESETS[name], "settings": asdict(preset)}
        for name, preset in presets.PRESETS.items()
    ],
    tasks=lab_messages.TASKS,
    activations=lab_messages.ACTIVATIONS,
    optimizers=lab_messages.OPTIMIZERS,
    ranges=presets.RANGES,
    whole=presets.WHOLE,
    sentences=presets.range_messages(),
    layers={"line": ["line"], "cnn": list(presets.CONV)},
)
DEPTH = Part("lab/depth", "hl-depth", terms=lab_messages.DEPTH_FORM)
