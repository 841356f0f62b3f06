"""Calls of the public API for type checkers: correct ones, and wrong ones that both mypy and pyright must report.

A comment `type: ignore` marks a wrong call. An unnecessary comment is an error too (see test_public_api.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

import explainers
from explainers import Partial, explain, grad_cam, integrated_gradients, occlusion, saliency
from explainers.keywords import Cost
from explainers.registry import method
from saliscope import runs
from saliscope.zoo import Model

model: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
images: Tensor = torch.rand(2, 3, 8, 8)
meta: Tensor = torch.rand(1, 5)


def run(batch: Tensor) -> Any:
    """Run a model with a second input."""
    return model(batch, meta.expand(len(batch), -1))


def highest(output: Tensor) -> Tensor:
    """Return a score for each image."""
    return output.amax(1)


def early(partial: Partial) -> bool:
    """Stop in the middle."""
    return partial.fraction < 0.5


@method(family="gradient", returns="pixels", title="Own", paper="none")
def own_method(model: nn.Module, images: Tensor, target: Any = None, *, steps: int = 8, **cost: Unpack[Cost]) -> Tensor:
    """Pass the shared keywords on."""
    return integrated_gradients(model, images, target, steps=steps, **cost)


def correct_calls() -> tuple[object, ...]:
    maps: Tensor = grad_cam(model, images)
    maps = grad_cam(model, images, 1, layer="0", relu=False, forward=run, through=("0", [1]))
    maps = saliency(model, images, [0, 1], forward=lambda batch: model(batch), through=(model, 3))
    maps = saliency(model=model, images=images, target=torch.tensor([0, 1]), forward=None, through=None)
    maps = integrated_gradients(model, images, highest, steps=16, baseline="blur", budget=1.5, forward=model)
    maps = integrated_gradients(model, images, batch_size=4, precision="bf16", progress=early, through=("0", 1))
    maps = explainers.sess(model, images, layer="0", precision="auto", progress=None, budget=2)
    maps = explainers.ablation_cam(model, images, layer="0", batch_size=None, progress=early, budget=2, forward=run)
    maps = own_method(model, images, steps=2, budget=1.5, forward=run, through=("0", [1]))
    maps = occlusion(model, images, explainers.Contrast(0, 1), window=(4, 4), stride=2, forward=run)
    maps = explainers.lrp(model, images, explainers.Logit(0), through=("0", (1, 2)))
    maps = explainers.METHODS["rise"](model, images, forward=run)
    explanation: explainers.Explanation = explain("grad_cam", model, images, 1, layer="0", steps=8, forward=run)
    explanation = explain(grad_cam, model, images, through=("0", [0]))
    explanation = explain(explainers.METHODS["grad_cam"], model, images)
    name: explainers.MethodName = "integrated_gradients"
    explanation = explain(name, model, images)
    explanation = explain("name of " + "a registered method", model, images)
    by_layer_of_name = explainers.sweep(name, model, images, layers=["0"])
    by_layer: dict[str, Tensor] = explainers.sweep(explainers.layer_cam, model, images, layers=["0"], forward=run)
    evaluation: explainers.Evaluation = explainers.evaluate(model, images, saliency, metrics="deletion", forward=run)
    found: explainers.Recommendation = explainers.recommend(model, images, methods=["cam", grad_cam], forward=run)
    names: list[explainers.Layer] = explainers.list_layers(model, images, forward=run)
    return maps, explanation.map, by_layer, by_layer_of_name, evaluation.values, found.best, names


def wrong_calls() -> None:
    grad_cam(model, images, targets=1)  # type: ignore
    grad_cam(model, images, layer=3)  # type: ignore
    grad_cam(model, images, forward=3)  # type: ignore
    saliency(model, images, layer="0")  # type: ignore
    saliency(model, images, through="layer3")  # type: ignore
    saliency(model, images, budget=1)  # type: ignore
    integrated_gradients(model, images, steps="many")  # type: ignore
    integrated_gradients(model, images, batch_size="large")  # type: ignore
    integrated_gradients(model, images, precision=16)  # type: ignore
    integrated_gradients(model, images, progress=True)  # type: ignore
    integrated_gradients(model, images, budget="short")  # type: ignore
    integrated_gradients(model, images, forward=3)  # type: ignore
    explainers.ablation_cam(model, images, precision="bf16")  # type: ignore
    own_method(model, images, timeout=1)  # type: ignore
    explain(3, model, images)  # type: ignore
    _name: explainers.MethodName = "grad_can"  # type: ignore


def use_runs(network: Model) -> float | None:
    """Explain a data set, and read its rows."""
    run = runs.explain("images", "run", model=network, method="rise", samples=50, progress=lambda done, total: None)
    runs.explain("images", "run", batch_size="16")  # type: ignore
    runs.open("run", method="rise")  # type: ignore
    for row in run:
        str(row["path"])
    found: runs.EvaluationResult = run.evaluate(images=5, metrics="deletion")
    page: Path = run.report(box=(0, 0, 0.5, 1)).page
    run.compare("other")  # type: ignore
    run.export("hf")  # type: ignore
    return run.accuracy if page.exists() and found.images else None
