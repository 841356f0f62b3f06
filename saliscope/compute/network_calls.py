"""All calls of a network, run locally or on the shared GPU of a Hugging Face Space.

On ZeroGPU a call runs in another process, so arguments and results must be picklable: networks are passed by name,
results are returned on the CPU, and long methods run to the end or to their time budget without partial maps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch

import explainers
from saliscope import limits
from saliscope.compute import model_cache
from saliscope.compute.answers import LoadedModel
from saliscope.compute.methods import costs
from saliscope.compute.objects import messages as object_messages
from saliscope.errors import Refused
from saliscope.zoo import text

R = TypeVar("R")
STARTING, FORWARD = 8, 4
"""Seconds that a call on the shared GPU needs to move the network, and for a few forward passes."""
YIELDING_BATCH = 8
"""Batch size of jobs that yield their turn after each batch; larger batches are hardly faster on the CPU."""

spaces: Any
try:
    spaces = importlib.import_module("spaces")  # optional; only installed on Hugging Face Spaces
except ImportError:
    spaces = None


def _on_network(name: str, function: Callable[..., Any], images: torch.Tensor, **keywords: Any) -> Any:
    """Call `function(network, images, ...)` with the named network and return its result on the CPU.

    Tensors among the keywords are moved to the device of the network, as the images are.
    """
    loaded = model_cache.load(name)
    device, network = model_cache.device_of_call(loaded), loaded.model.network
    if limits.SHARED_GPU:  # this process has the GPU only during the call
        network = network.to(device)
    with (
        explainers.declared_score(loaded.model.score),
        _computing_threads(quick=not {"progress", "budget"} & keywords.keys()),
    ):
        moved = {name: item.to(device) for name, item in keywords.items() if isinstance(item, torch.Tensor)}
        return _on_cpu(function(network, images.to(device), **keywords | moved))


@contextlib.contextmanager
def _computing_threads(quick: bool) -> Iterator[None]:
    """Compute with all threads of torch, or in a quick call with one less, which leaves a core to browser and server.

    The threads wait for each other in every operation. With a browser on the same two cores, the network of a click
    took 0.19 to 0.40 s with two threads, and 0.09 to 0.13 s with one.
    """
    usual = torch.get_num_threads()  # since this call, this thread has its own number
    torch.set_num_threads(max(1, _most_threads() - quick))
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@functools.cache
def _most_threads() -> int:
    """Return the number of threads of torch before a call changed it."""
    return torch.get_num_threads()


def gpu_seconds(name: str, function: Callable[..., Any], images: torch.Tensor, **keywords: Any) -> int:
    """Return the seconds for which a call needs the shared GPU; a shorter time has a higher priority in its queue.

    The times in costs.json were measured on a CPU, so they are upper limits of the times on a GPU.
    """
    method = _mapping_method(function)
    estimate = None if method is None else costs.seconds(method, model_cache.load(name))
    if estimate is None:  # other long work has a budget, and the rest is a few forward passes
        return int(limits.SECONDS) if "budget" in keywords or method else STARTING + FORWARD
    return min(int(limits.SECONDS), STARTING + math.ceil(estimate))


def _mapping_method(function: Callable[..., Any]) -> str | None:
    """Return the method of a call that computes a map, or None for other calls."""
    call: Any = function
    while isinstance(call, partial):
        if call.func is explainers.explain:
            return str(call.args[0])
        call = call.args[-1] if call.args else None  # the function that `around` or `_in_batches` calls
    return None


# Outside ZeroGPU the decorator returns the function unchanged.
run = spaces.GPU(duration=gpu_seconds)(_on_network) if spaces else _on_network


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_on_cpu, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        moved = {name: _on_cpu(field) for name, field in fields.items() if isinstance(field, (torch.Tensor, dict))}
        return dataclasses.replace(value, **moved)
    return value


def explain(
    name: str,
    method: str,
    images: torch.Tensor,
    progress: Callable[[Any], bool] | None = None,
    *,
    around: Callable[..., explainers.Explanation] | None = None,
    **keywords: Any,
) -> explainers.Explanation:
    """Call `explainers.explain`; `progress` is for long methods, which also take `batch_size`.

    `around(explain, network, images, ...)` calls `explain` with the rest of its arguments, such as inside a context.
    The result does not keep the images: results of one user's image are cached for all users.
    """
    function: Callable[..., Any] = partial(explainers.explain, method)
    if progress is not None:
        keywords |= progress_options(progress)
        function = partial(_in_batches, _batch_size(name), function)
    if around is not None:
        function = partial(around, function)
    return dataclasses.replace(run(name, function, images, **keywords), images=None)


def _measure_map(
    function: Callable[..., R], name: str, images: torch.Tensor, maps: Any, progress: Callable[[Any], bool], **more: Any
) -> R:
    """Call a function of the library that measures a map of one image, given as `maps`."""
    function = partial(_in_batches, _batch_size(name), function, small=True)
    return run(name, function, images, maps=maps, **more, **progress_options(progress))


evaluate = partial(_measure_map, explainers.evaluate)
"""Call `explainers.evaluate` for an explanation of one image."""
remove_brightest = partial(_measure_map, explainers.remove_brightest)
"""Call `explainers.remove_brightest` for a map [1, h, w] of one image."""


def recommend(
    name: str, images: torch.Tensor, progress: Callable[[Any], bool], **keywords: Any
) -> explainers.Recommendation:
    """Call `explainers.recommend`; there are no progress reports on a shared GPU."""
    keywords |= {} if spaces is not None and limits.SHARED_GPU else {"progress": progress}
    return run(name, partial(_in_batches, _batch_size(name), explainers.recommend), images, **keywords)


def _in_batches(
    batch_size: int,
    function: Callable[..., R],
    network: Any,
    images: torch.Tensor,
    small: bool = False,
    **keywords: Any,
) -> R:
    """Call a function with a limited batch size; with `small`, it often lets quick jobs go first on the CPU."""
    if small and images.device.type == "cpu":
        batch_size = min(batch_size, YIELDING_BATCH)
    with explainers.largest_batch(batch_size):
        return function(network, images, **keywords)


def _batch_size(name: str) -> int:
    """Return the batch size for which the activations of all layers, or else the images, fit into `limits.MEMORY`."""
    loaded = model_cache.load(name)
    image = loaded.model.channels * math.prod(loaded.model.size)
    bytes_per_image = 4 * (sum(math.prod(layer.shape) for layer in loaded.layers) or image)
    return max(1, limits.MEMORY // bytes_per_image)


def features(name: str, images: torch.Tensor, layer: str) -> torch.Tensor:
    """Return the channels of a layer for one image on a grid that covers it evenly, float32 [K, h, w]."""
    return run(name, _features, images, layer=layer)[0].float()


def _features(network: Any, images: torch.Tensor, layer: str) -> torch.Tensor:
    return _placed(network, images, {layer: explainers.feature_maps(network, images, layer=layer)})[layer]


def _placed(network: Any, images: torch.Tensor, maps: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Move the maps of layers, by name, to grids that cover the image evenly."""
    layers = {layer.name: layer.placement for layer in explainers.list_layers(network, images)}
    return {name: explainers.place(each, layers[name]) for name, each in maps.items()}


def effect(
    network: Any, images: torch.Tensor, target: int | explainers.Target, layer: str, channel: int
) -> torch.Tensor:
    """Return the drop of the target score when one channel is removed, from two forward passes."""
    found = explainers.intervene(network, images, layer, target, channels=channel)
    assert found.target_before is not None and found.target_after is not None, "there is a target"
    return (found.target_before - found.target_after)[0]


def gradient_norm(gradient: torch.Tensor) -> float:
    """Return the norm in float64: squares may underflow in float32. Not all devices have float64."""
    return float(torch.linalg.vector_norm(gradient.detach().cpu(), dtype=torch.float64))


def norm_and_zeros(gradient: torch.Tensor) -> tuple[float, float]:
    """Return the norm of a gradient, and the fraction of its values that are zero."""
    return gradient_norm(gradient), float((gradient.detach().cpu() == 0).double().mean())


def layer_gradients(
    network: Any,
    images: torch.Tensor,
    target: int | explainers.Target,
    layers: list[str],
    measure: Callable[[torch.Tensor], R],
) -> dict[str, R]:
    """Return `measure` of the gradient of the score at each layer output; it is zero at layers without a gradient."""
    results = dict.fromkeys(layers, measure(torch.zeros(1)))

    def record(name: str, gradient: torch.Tensor) -> None:
        results[name] = measure(gradient)

    with torch.enable_grad(), explainers.edit_gradients({(network, name): partial(record, name) for name in layers}):
        inputs = images.detach().clone().requires_grad_()
        score = (explainers.Logit(target) if isinstance(target, int) else target)(network(inputs))
        torch.autograd.grad(score.sum(), inputs)  # does not change `.grad` of the parameters
    return results


def sweep(
    name: str, images: torch.Tensor, target: int | explainers.Target, layers: list[str]
) -> dict[str, torch.Tensor]:
    """Compute Grad-CAM at several layers from one pass, on grids that cover the image evenly."""
    return run(name, _sweep, images, target=target, layers=layers)


def _sweep(network: Any, images: torch.Tensor, **keywords: Any) -> dict[str, torch.Tensor]:
    return _placed(network, images, explainers.grad_cam_sweep(network, images, **keywords))


def scores(name: str, images: torch.Tensor) -> torch.Tensor:
    """Return the scores of the network for one image, float32 [K]; for Hugging Face outputs, the logits."""
    output = run(name, _forward, images)
    return (output["logits"] if isinstance(output, dict) else output)[0].float()


def probabilities(loaded: LoadedModel, scores: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of the classes, or the scores if they have none."""
    # The sigmoid of several confident labels is 1 in float32, which would hide their order.
    found = explainers.probabilities_of(scores.double() if loaded.score == "sigmoid" else scores, loaded.score)
    return scores if found is None else found


def embedding(name: str, sentence: str) -> torch.Tensor:
    """Return the embedding [D] of a sentence by the text encoder of the network.

    Errors   BadSentence
    """
    return run(name, partial(_embed, name, sentence), torch.zeros(0))


def _embed(name: str, sentence: str, network: Any, images: torch.Tensor) -> torch.Tensor:
    return text.embedding(model_cache.load(name).model, sentence)


def detections(name: str, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return boxes [n, 4] in input pixels, labels [n] and scores [n] of the detections in one image.

    Errors   Refused for an output that is not in the format of torchvision: a list with one dictionary per image
    """
    output = run(name, _forward, images)
    rows = output[0] if isinstance(output, (list, tuple)) and len(output) == 1 else None
    if not isinstance(rows, dict) or not {"boxes", "labels", "scores"} <= rows.keys():
        raise Refused(object_messages.no_detections(output))
    return rows["boxes"].float(), rows["labels"].long(), rows["scores"].float()


def pixel_classes(name: str, images: torch.Tensor) -> torch.Tensor:
    """Return the class of every pixel of the output of a segmentation network for one image, int64 [h, w].

    Errors   Refused for an output without scores [1, K, h, w]
    """
    output = run(name, _forward, images)
    try:
        return explainers.pixel_classes(output)[0]
    except explainers.BadTarget as error:
        raise Refused(object_messages.no_pixel_scores(output)) from error


def _forward(network: Any, images: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return network(images)


def progress_options(progress: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the keyword arguments of a long method that reports its progress, if that is possible."""
    if spaces is not None and limits.SHARED_GPU:
        return {"budget": 0.8 * limits.SECONDS}
    return {"progress": progress}
