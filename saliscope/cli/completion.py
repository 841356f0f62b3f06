"""Completions of options in the shell. Nothing is downloaded for them, and errors give no completion."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import typer

from saliscope import zoo


def methods(incomplete: str) -> list[str]:
    """Return the methods that start with a text."""
    import explainers  # torch takes seconds to start

    return [name for name in explainers.METHODS if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Return the models that start with a text."""
    return [info.name for info in zoo.list_models() if info.name.startswith(incomplete)]


def layers(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the layers of the model in --model that start with a text, with their shapes."""
    os.environ["SALISCOPE_OFFLINE"] = "1"
    try:
        found = list_layers(str(context.params.get("model") or "auto"))
    except Exception:  # a shell shows no message while it completes
        return
    yield from ((name, " × ".join(map(str, shape))) for name, shape, _ in found if name.startswith(incomplete))


def list_layers(model: str, **options: Any) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, output shape and kind of the layers of a model that have a grid, from input to output.

    Errors   zoo.ModelUnavailable, Refused, and those of `explainers`
    """
    import torch  # takes seconds to start

    import explainers  # as above

    loaded = zoo.load_model(model, **options)
    noise = torch.rand(1, loaded.channels, *loaded.size, generator=torch.Generator().manual_seed(0))
    found = explainers.list_layers(loaded.network, noise, spatial=True)
    return [(layer.name, tuple(layer.shape), layer.kind) for layer in found]
