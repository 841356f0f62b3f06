"""Requests to the engine in tests, and the steps of their answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image

from saliscope import limits
from saliscope.compute import engine, model_cache
from saliscope.compute.answers import Answer
from saliscope.compute.jobs import runs
from saliscope.compute.request import Request
from saliscope.images import examples

MODEL = "efficientnet_lite0"
SMALL, MEDIUM = f"{MODEL}?size=64", f"{MODEL}?size=112"
"""The same network with smaller inputs, for what takes long."""
CAT, DOG, COFFEE, GOLDFISH = (str(examples.all_examples()[name].path) for name in ("cat", "dog", "coffee", "goldfish"))


def steps_of(function: Any, *values: Any, **more: Any) -> list[Any]:
    """Return all steps of a job."""
    with runs.start(None) as run:
        return list(function(*values, run=run, **more))


def last_steps(request: Request, function: Any = engine.explain, **more: Any) -> dict[type, Any]:
    """Return the last step of each type."""
    return {type(step): step for step in steps_of(function, request, **more)}


def answered(request: Request) -> Answer:
    """Return the answer, without the maps of other layers."""
    found: Answer = last_steps(request, stages=False)[Answer]
    return found


def text_of(parts: list[Any]) -> str:
    """Return the text of a message that consists of parts."""
    return "".join(part if isinstance(part, str) else part["text"] for part in parts)


def forget_networks() -> None:
    """Forget all networks except for the default one and a variant of it, as in a new process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "NETWORKS", 1)
        for size in (32, 40):  # at most one of them is known, so that the other is loaded, and all others are forgotten
            model_cache.load(f"{MODEL}?size={size}")


def inputs(path: str = CAT, name: str = MODEL) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return the network, and the tensor that it receives for an image."""
    model = model_cache.load(name).model
    return model.network, model.prepare(Image.open(path).convert("RGB"))
