"""Record the inputs and outputs of layers, and the gradients of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import WrongType, shorten
from explainers.hooks.calls import Calls
from explainers.hooks.checkpoints import run_checkpoints_directly
from explainers.hooks.locate import find_hook_point, unwrap, unwrap_for_hooks
from explainers.hooks.records import Records, refuse_transformed
from explainers.nested import map_tensors
from explainers.options import LayerName


class Capture(Mapping[Any, Any]):
    """The records of a `capture` block: `outputs`, `inputs` and, if requested, `gradients`, each by layer.

    `captured["layer3"]` is `captured.outputs["layer3"]`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.outputs, self.inputs, self.gradients = Records(model), Records(model), Records(model)

    def __getitem__(self, layer: LayerName) -> Any:
        return self.outputs[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __repr__(self) -> str:
        return f"Capture(outputs={self.outputs}, gradients={self.gradients})"


@contextmanager
def capture(model: nn.Module, layers: LayerName | Sequence[LayerName], *, gradients: bool = False) -> Iterator[Capture]:
    """Record the inputs and outputs of layers, and with `gradients` the gradients that reach their outputs.

    Segments in `torch.utils.checkpoint` run without it, since they would run twice.

    Returns  a `Capture`; after the block its tensors are detached. A layer's tensor has the layer's own shape,
             dtype and device, and is the value before any later in-place operation. Gradients are those of the latest
             backward pass inside the block; they are recorded even if all parameters are frozen.
    Errors   LayerNotFound for an unknown name (or, on access, one that did not run), LayerRanRepeatedly on access
             to a plain name with several calls, UnsupportedModel for scripted, traced and exported models, and, in
             the forward pass, for a layer inside a transform of torch.func.
    Source   torch.nn.Module.register_forward_hook, torch.Tensor.register_hook

    Example
        >>> with capture(model, ["layer3", "layer4"]) as captured:
        ...     scores = model(images)
        >>> captured["layer3"].shape, captured.inputs["layer4"].shape
        (torch.Size([1, 256, 14, 14]), torch.Size([1, 256, 14, 14]))
    """
    found = Capture(unwrap(model))

    def start() -> None:
        for records in (found.outputs, found.inputs, found.gradients):
            records.clear()

    with ExitStack() as stack:
        for records in (found.outputs, found.inputs, found.gradients):
            stack.callback(records.freeze)
        model = unwrap_for_hooks(model, stack)
        sites = [find_hook_point(model, layer) for layer in _as_list(layers)]
        calls = Calls(model, stack, start)
        for site in sites:
            calls.before(stack, site, _record_inputs(site.path, found.inputs))
            calls.after(stack, site, _record_outputs(site.path, found, stack if gradients else None))
        run_checkpoints_directly(stack)
        yield found


def _record_inputs(path: str, inputs: Records) -> Callable[[int, tuple[Any, ...]], Any]:
    def act(k: int, args: tuple[Any, ...]) -> Any:
        refuse_transformed(path, args)
        inputs.put(path, k, args[0] if len(args) == 1 else args)
        return map_tensors(args, Tensor.clone)

    return act


def _record_outputs(path: str, found: Capture, stack: ExitStack | None) -> Callable[[int, Any], Any]:
    def act(k: int, output: Any) -> Any:
        refuse_transformed(path, output)
        if stack is not None and isinstance(output, Tensor) and torch.is_grad_enabled():
            if not output.requires_grad and output.is_floating_point():
                # Frozen network, plain input: the output becomes the leaf to which gradients flow.
                output = output.detach().requires_grad_()
            if output.requires_grad:
                # A module may return its input (Dropout in eval mode); the view only gets the gradient of this output.
                output = output.view_as(output)
                handle = output.register_hook(lambda g: found.gradients.put(path, k, g.detach().clone()))
                stack.callback(handle.remove)
        found.outputs.put(path, k, output)
        return map_tensors(output, Tensor.clone)

    return act


class InputGradients:
    """Gradients of modules by layer name: `grad_input` (of the inputs) and `grad_output` (of the output)."""

    def __init__(self, model: nn.Module) -> None:
        self.grad_input, self.grad_output = Records(model), Records(model)


@contextmanager
def input_gradients(model: nn.Module, layers: LayerName | Sequence[LayerName]) -> Iterator[InputGradients]:
    """Record what a full backward hook receives: the gradients of a module's inputs and output.

    They are read by hooks on the tensors, so in-place modules (`ReLU(inplace=True)`) work, which PyTorch's full
    backward hook does not support. Checkpointed segments run as in `capture`.

    Returns  an `InputGradients`; if a module's input is also used elsewhere, `grad_input` contains only the gradient
             through this module
    Errors   LayerNotFound, UnsupportedModel
    Source   torch.nn.Module.register_full_backward_hook

    Example
        >>> with input_gradients(model, "layer4") as captured:
        ...     model(images)[0, 281].backward()
        >>> captured.grad_input["layer4"].shape
        torch.Size([1, 256, 14, 14])
    """
    found = InputGradients(unwrap(model))

    def watch(records: Records, path: str, k: int, value: Any) -> Any:
        clones = map_tensors(value, Tensor.clone)
        tensors = [t for t in (clones if isinstance(clones, tuple) else (clones,)) if isinstance(t, Tensor)]
        gradients: list[Tensor | None] = [None] * len(tensors)

        def save(gradient: Tensor, index: int) -> None:
            gradients[index] = gradient.detach().clone()
            records.put(path, k, gradients[0] if len(tensors) == 1 else tuple(gradients))

        for index, tensor in enumerate(tensors):
            if tensor.requires_grad:
                stack.callback(tensor.register_hook(partial(save, index=index)).remove)
        return clones

    def start() -> None:
        found.grad_input.clear()
        found.grad_output.clear()

    with ExitStack() as stack:
        model = unwrap_for_hooks(model, stack)
        calls = Calls(model, stack, start)
        for site in [find_hook_point(model, layer) for layer in _as_list(layers)]:
            path = site.path
            calls.before(stack, site, lambda k, given, path=path: watch(found.grad_input, path, k, given))  # type: ignore[misc]
            calls.after(stack, site, lambda k, out, path=path: watch(found.grad_output, path, k, out))  # type: ignore[misc]
        run_checkpoints_directly(stack)
        yield found


def _as_list(layers: LayerName | Sequence[LayerName]) -> list[LayerName]:
    if isinstance(layers, (str, nn.Module)):
        return [layers]
    if not isinstance(layers, (list, tuple)):
        raise WrongType(f"layers={shorten(layers)} is not valid. Give a name from list_layers, or a list of names.")
    return list(layers)
