"""Every run of a network, whichever tab asks: here, or on the GPU that a Space lends for the length of a call.

On ZeroGPU a call runs in another process, so what goes in and comes back must be picklable: networks go by name,
results come back on the CPU, and long methods run to their end or their time budget there, without partial maps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ui import limits, words
from ui.engine import model_cache
from ui.engine.messages import Refused

if TYPE_CHECKING:
    import torch

    import explainers
    from explainers.targets import Target

R = TypeVar("R")
ASIDE = 8
"""Rows of a batch of what steps aside for clicks after each; on the CPU more are hardly faster."""

try:
    import spaces
except ImportError:
    spaces = None


def _on_network(name: str, function: Callable[..., Any], images: torch.Tensor, **keywords: Any) -> Any:
    """`function(network, images, ...)` with the network of that name, tensors of the result on the CPU."""
    loaded = model_cache.load(name)
    return _on_cpu(function(loaded.model.network, images.to(loaded.device), **keywords))


# Anywhere but on ZeroGPU the decorator gives the function back as it is.
run = spaces.GPU(duration=int(limits.SECONDS))(_on_network) if spaces else _on_network


def _on_cpu(value: Any) -> Any:
    import torch  # torch takes seconds to start

    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_on_cpu, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        held = {name: _on_cpu(field) for name, field in fields.items() if isinstance(field, (torch.Tensor, dict))}
        return dataclasses.replace(value, **held)
    return value


def explain(
    name: str, method: str, images: torch.Tensor, progress: Callable[[Any], bool] | None = None, **keywords: Any
) -> explainers.Explanation:
    """`explainers.explain`; `progress` is for long methods, which take `batch_size` too."""
    import explainers  # torch takes seconds to start

    if progress is None:
        return run(name, partial(explainers.explain, method), images, **keywords)
    keywords |= _reporting(progress)
    return run(name, partial(_within_memory, _rows(name), method), images, **keywords)


def evaluate(
    name: str,
    images: torch.Tensor,
    explanation: explainers.Explanation,
    progress: Callable[[Any], bool],
    **keywords: Any,
) -> explainers.Evaluation:
    """`explainers.evaluate` of an explanation of the one picture."""
    run_it = partial(_evaluate, _rows(name), explanation)
    return run(name, run_it, images, **keywords, **_reporting(progress))


def _evaluate(
    rows: int, explanation: explainers.Explanation, network: Any, images: torch.Tensor, **keywords: Any
) -> explainers.Evaluation:
    import explainers  # torch takes seconds to start
    from explainers.passes.loop import largest_batch  # torch takes seconds to start

    with largest_batch(min(rows, ASIDE) if images.device.type == "cpu" else rows):
        return explainers.evaluate(network, images, explanation, **keywords)


def randomise(
    name: str, images: torch.Tensor, method: str, progress: Callable[[Any], bool], **keywords: Any
) -> explainers.Randomisation:
    """`explainers.randomisation_test` of a method on the one picture."""
    return run(name, partial(_randomise, method), images, **keywords, **_reporting(progress))


def _randomise(method: str, network: Any, images: torch.Tensor, **keywords: Any) -> explainers.Randomisation:
    import explainers  # torch takes seconds to start

    return explainers.randomisation_test(network, images, method, **keywords)


def _within_memory(rows: int, method: str, *values: Any, **keywords: Any) -> explainers.Explanation:
    """`explainers.explain` with batches of at most so many rows."""
    import explainers  # torch takes seconds to start
    from explainers.passes.loop import largest_batch  # torch takes seconds to start

    with largest_batch(rows):
        return explainers.explain(method, *values, **keywords)


def recommend(
    name: str, images: torch.Tensor, progress: Callable[[Any], bool], **keywords: Any
) -> explainers.Recommendation:
    """`explainers.recommend`; on a GPU that is lent by the call without reports."""
    keywords |= {} if spaces is not None and limits.SHARED_GPU else {"progress": progress}
    return run(name, partial(_recommended, _rows(name)), images, **keywords)


def _recommended(rows: int, *values: Any, **keywords: Any) -> explainers.Recommendation:
    """`explainers.recommend` with batches of at most so many rows."""
    import explainers  # torch takes seconds to start
    from explainers.passes.loop import largest_batch  # torch takes seconds to start

    with largest_batch(rows):
        return explainers.recommend(*values, **keywords)


def _rows(name: str) -> int:
    """Rows for which the outputs of all layers, kept for a backward pass, fit into `limits.MEMORY`."""
    row = 4 * sum(math.prod(layer.shape) for layer in model_cache.load(name).layers)
    return max(1, limits.MEMORY // row)


def features(name: str, images: torch.Tensor, layer: str) -> torch.Tensor:
    """The layer's channels for the one picture, float32 [K, h, w]."""
    import explainers  # torch takes seconds to start

    return run(name, explainers.feature_maps, images, layer=layer)[0].float()


def effects(
    name: str,
    images: torch.Tensor,
    target: int | Target,
    layer: str,
    progress: Callable[[Any], bool],
) -> torch.Tensor:
    """The drop of the target's score without each channel, float32 [K]."""
    import explainers  # torch takes seconds to start

    return run(name, explainers.channel_effects, images, target=target, layer=layer, **_reporting(progress))[0].float()


def effect(name: str, images: torch.Tensor, target: int | Target, layer: str, axis: int, channel: int) -> float:
    """The drop of the target's score without one channel, from two forward passes."""
    return float(run(name, _effect, images, target=target, layer=layer, axis=axis, channel=channel))


def _effect(
    network: Any, images: torch.Tensor, target: int | Target, layer: str, axis: int, channel: int
) -> torch.Tensor:
    import torch  # torch takes seconds to start

    import explainers  # torch takes seconds to start

    def ablate(output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output.select(axis, channel).zero_()
        return output

    score = explainers.Logit(target) if isinstance(target, int) else target
    with torch.inference_mode():
        whole = score(_logits(network(images)))
        with explainers.edit_outputs(network, {layer: ablate}):
            return (whole - score(_logits(network(images))))[0]


def at_gradients(
    network: Any, images: torch.Tensor, target: int | Target, layers: list[str], measure: Callable[[torch.Tensor], R]
) -> dict[str, R]:
    """`measure` of the score's gradient with respect to each layer's output; nothing where no gradient reaches it."""
    import torch  # torch takes seconds to start

    import explainers  # torch takes seconds to start
    from explainers.targets import scores_of  # torch takes seconds to start

    found: dict[str, R] = {}

    def recording(name: str) -> Callable[[torch.Tensor], None]:
        def see(gradient: torch.Tensor) -> None:
            found[name] = measure(gradient.detach())

        return see

    with torch.enable_grad(), explainers.edit_gradients({(network, name): recording(name) for name in layers}):
        inputs = images.detach().clone().requires_grad_()
        output = network(inputs)
        score = scores_of(output)[:, target] if isinstance(target, int) else target(output)
        torch.autograd.grad(score.sum(), inputs)  # leaves the parameters' `.grad` alone
    return found


def _logits(output: Any) -> Any:
    """The tensor of Hugging Face's outputs; others as they are."""
    return getattr(output, "logits", output)


def reaches(name: str, images: torch.Tensor, target: Target, layer: str) -> bool:
    """Whether the target's score depends on the layer's output at all, by its gradient there."""
    import explainers  # torch takes seconds to start

    return bool(run(name, explainers.hires_cam, images, target=target, layer=layer, relu=False).any())


def sweep(name: str, images: torch.Tensor, target: int | Target, layers: list[str]) -> dict[str, torch.Tensor]:
    """Grad-CAM at several layers from one pass."""
    import explainers  # torch takes seconds to start

    return run(name, explainers.grad_cam_sweep, images, target=target, layers=layers)


def scores(name: str, images: torch.Tensor) -> torch.Tensor:
    """The network's scores for the one picture, float32 [K]; of Hugging Face's outputs the logits."""
    output = run(name, _forward, images)
    return (output["logits"] if isinstance(output, dict) else output)[0].float()


def detections(name: str, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Boxes [n, 4] in pixels of the input, labels [n] and scores [n] of what a detector finds in the one picture.

    Errors   Refused for an output that is not torchvision's: a list with a dictionary of the three for each picture
    """
    found = run(name, _forward, images)
    rows = found[0] if isinstance(found, (list, tuple)) and len(found) == 1 else None
    if not isinstance(rows, dict) or not {"boxes", "labels", "scores"} <= rows.keys():
        raise Refused(words.no_detections(found))
    return rows["boxes"].float(), rows["labels"].long(), rows["scores"].float()


def pixel_classes(name: str, images: torch.Tensor) -> torch.Tensor:
    """The class of every pixel of a segmentation network's output for the one picture, int64 [h, w].

    A network with a single channel says yes or no: its class is 0, and -1 where the score is not positive.

    Errors   Refused for an output that has no scores [1, K, h, w]
    """
    output = run(name, _forward, images)
    held = (
        next((output[key] for key in ("out", "logits") if key in output), None) if isinstance(output, dict) else output
    )
    scores = held if hasattr(held, "ndim") else getattr(output, "logits", None)
    if scores is None or scores.ndim != 4:
        raise Refused(words.no_pixel_scores(output))
    return scores[0].argmax(0) if scores.shape[1] > 1 else (scores[0, 0] > 0).long() - 1


def _forward(network: Any, images: torch.Tensor) -> torch.Tensor:
    import torch  # torch takes seconds to start

    with torch.inference_mode():
        return network(images)


def _reporting(progress: Callable[[Any], bool]) -> dict[str, Any]:
    if spaces is not None and limits.SHARED_GPU:
        return {"budget": 0.8 * limits.SECONDS}
    return {"progress": progress}
