"""Gradient hooks for training: clip, scale, freeze, replace, add noise. `record_gradients` records their effect.

    with clip_gradients(model, norm=1.0), scale_gradients(model, {"0.*": 0.1}), record_gradients(model) as log:
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()        # hooks act here
            optimizer.step()

Blocks act in the order of entry: above, gradients are clipped, then scaled, then recorded. Hooks are removed at the end
of their block, even after an error, and act only on backward passes of the thread that entered it. On an accelerator,
passes of several threads over the same parameters cannot be distinguished.

Functions such as `gradient * 3` do not need to clone, since they do not work in place. Hooks also run on intermediate
tensors, although the `.grad` of an intermediate tensor stays None.

`params` is anything an optimizer accepts: tensors, (name, tensor) pairs, groups with "params", a mapping by name, or a
module. Parameters that do not require grad are ignored. A pattern is a shell pattern over the dotted names of
`model.named_parameters()`, such as "layer4.*", or a layer, by name or as a module, which stands for all parameters in
it: "layer4", model.layer4. A pattern without a match raises an error.

Under DistributedDataParallel, the gradients of parameters are edited and recorded after they are averaged over the
processes; within `no_sync`, with the pass that averages them. If you average gradients yourself after backward, clip
them after that with `torch.nn.utils.clip_grad_norm_`. Sharded parameters are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption, WrongType, shorten
from explainers.hooks.calls import Edit
from explainers.hooks.edit import edit_gradients, edit_together
from explainers.options import LayerName
from explainers.training.parameters import Params, Scaler, gather, match_parameters, not_sharded_inside, scale_of

Edits = dict[Tensor | tuple[nn.Module, LayerName], Edit]


@contextmanager
def clip_gradients(
    params: Params, norm: float | None = None, *, value: float | None = None, scaler: Scaler = None
) -> Iterator[None]:
    """Clip the total norm over all parameters to `norm`, or every component to [-value, value].

    A tensor hook receives one gradient and cannot know whether others follow, since a parameter that the loss does not
    depend on gets none. `norm` is therefore applied at the end of the backward pass, in a callback queued by the hooks:
    `.grad` is scaled by norm / total, as in `torch.nn.utils.clip_grad_norm_`. Blocks entered later act after it, on the
    clipped gradient. Over several backward passes without `zero_grad`, the accumulated gradient is clipped, which needs
    a second copy of the gradients. `torch.autograd.grad` does not write `.grad`, so `norm` does not apply to it. If
    both are given, `value` is applied first. If the loss is scaled, pass the GradScaler as `scaler`: the limits then
    apply to the unscaled gradients. An optimizer in a hook uses the gradients before their norm is known, so `norm`
    raises an error; `value` applies to it.

    Returns  nothing
    Errors   BadOption if neither is given, one is not above 0, no parameter requires grad, the parameters are sharded,
             `value` is given for complex parameters, or `scaler` is missing (also raised by the backward pass)
    Source   Pascanu et al. 2013, arXiv:1211.5063, section 3.2 (norm)

    Example
        >>> with clip_gradients(model, norm=1.0):
        ...     model(images).sum().backward()
        >>> round(torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm().item(), 3)
        1.0
    """
    if value is None and norm is None:
        raise BadOption(
            "clip_gradients needs a limit. Pass value=1.0 to clip each component, or norm=1.0 to clip the total norm."
        )
    for name, limit in (("value", value), ("norm", norm)):
        if limit is not None:
            _check_number(name, limit, above=0)
    call = f"clip_grad_norm_(model.parameters(), {norm})" if norm else f"clip_grad_value_(model.parameters(), {value})"
    instead = f"After backward (and scaler.unscale_(optimizer), if there is a scaler), call torch.nn.utils.{call}"
    instead += f", or for FullyShardedDataParallel model.clip_grad_norm_({norm})." if norm else "."
    tensors = gather(params, instead)
    if value is not None and any(tensor.is_complex() for tensor in tensors.values()):
        raise BadOption("clip_gradients(value=...) does not support complex parameters. Pass norm=... instead.")
    scale = scale_of(scaler, "clip_gradients")

    def clamp(gradient: Tensor) -> Tensor:
        limit: Any = (value or 0) * scale(gradient)
        if gradient.layout is not torch.sparse_coo:
            return gradient.clamp(-limit, limit).to(gradient.dtype)
        gradient = gradient.coalesce()  # zeros that a sparse gradient does not store stay zero
        values = gradient.values().clamp(-limit, limit).to(gradient.dtype)
        return torch.sparse_coo_tensor(
            gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False
        )

    def shrink(gradients: list[Tensor]) -> list[Tensor]:
        # The stored values of a sparse gradient, in which every component occurs once.
        values = [each.coalesce().values() if each.layout is torch.sparse_coo else each for each in gradients]
        total = torch.nn.utils.get_total_norm(values)
        # A total of 0 gives an infinite quotient, which is clamped to a factor of 1.
        factor = (float(norm or 0) * scale(total) / total).clamp(max=1.0)
        return [gradient * factor.to(gradient.device) for gradient in gradients]

    with ExitStack() as stack:
        stack.enter_context(not_sharded_inside(params, instead))
        if value is not None:
            stack.enter_context(edit_gradients(dict.fromkeys(tensors.values(), clamp)))
        if norm is not None:
            stack.enter_context(edit_together(list(tensors.values()), shrink))
        yield


@contextmanager
def scale_gradients(model: nn.Module, factors: Mapping[str, float]) -> Iterator[None]:
    """Multiply gradients by a factor per layer or pattern, which with plain SGD sets per-parameter learning rates.

    A parameter matched by several patterns is multiplied by all their factors. Adam and RMSprop are invariant to a
    constant factor; use parameter groups with a separate `lr` instead.

    Returns  nothing
    Errors   BadOption for a pattern without a match, with the three nearest names, or a factor that is not finite
    Source   torch.Tensor.register_hook

    Example
        >>> with scale_gradients(model, {"fc.*": 0.1}):
        ...     model(images)[0, 281].backward()
        >>> model.fc.bias.grad[281]
        tensor(0.1000)
    """
    product: dict[Tensor, float] = {}
    instead = "After backward, multiply the gradients: parameter.grad.mul_(factor)."
    if not isinstance(factors, Mapping):
        raise WrongType(f"factors={shorten(factors)} is not a mapping. Give {{pattern: factor}}.")
    for pattern, factor in factors.items():
        _check_number(f"factors[{pattern!r}]", factor)
        for parameter in match_parameters(model, pattern, instead).values():
            if parameter.requires_grad:
                product[parameter] = product.get(parameter, 1.0) * factor
    edits: Edits = {parameter: partial(torch.mul, other=factor) for parameter, factor in product.items()}
    with not_sharded_inside(model, instead), edit_gradients(edits):
        yield


@contextmanager
def freeze(model: nn.Module, pattern: LayerName | Iterable[LayerName]) -> Iterator[None]:
    """Set the gradients of all parameters that match a pattern to zero, or of those in a layer: "layer1", model.layer1.

    Accumulated momentum and weight decay still change a parameter whose gradient is zero. To prevent that, exclude it
    from the optimizer.

    Returns  nothing
    Errors   BadOption for a pattern without a match, with the three nearest names, or a layer without parameters;
             LayerNotFound for a module that is not part of the model
    Source   torch.Tensor.register_hook

    Example
        >>> with freeze(model, "conv1"):
        ...     model(images).sum().backward()
        >>> bool(model.conv1.weight.grad.any())
        False
    """
    if not isinstance(pattern, (str, nn.Module, Iterable)) or isinstance(pattern, Tensor):
        raise WrongType(f"pattern={shorten(pattern)} is not valid. Give a layer, a shell pattern, or a list of them.")
    patterns = [pattern] if isinstance(pattern, (str, nn.Module)) else list(pattern)
    instead = "After backward, call parameter.grad.zero_(), or parameter.requires_grad_(False) before sharding."
    frozen = [parameter for pattern in patterns for parameter in match_parameters(model, pattern, instead).values()]
    edits: Edits = {parameter: torch.zeros_like for parameter in frozen if parameter.requires_grad}
    with not_sharded_inside(model, instead), edit_gradients(edits):
        yield


@contextmanager
def replace_gradient(tensor: Tensor, function: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Replace the gradient of a leaf or intermediate tensor by `function(gradient)`, which is propagated further.

    The result must have the same shape, dtype and device; None keeps the gradient. If a GradScaler scales the loss,
    the function receives the scaled gradient.

    Returns  nothing
    Errors   BadOption if the tensor does not require grad, or if the result differs in shape, dtype or device (raised
             by the backward pass, with the reason); WrongType if the result is not a tensor
    Source   torch.Tensor.register_hook

    Example
        >>> with replace_gradient(model.fc.bias, lambda gradient: gradient * 3):
        ...     model(images)[0, 281].backward()
        >>> model.fc.bias.grad[281]
        tensor(3.)
    """
    with edit_gradients({tensor: function}):
        yield


@contextmanager
def add_gradient_noise(params: Params, *, std: float, seed: int = 0, scaler: Scaler = None) -> Iterator[None]:
    """Add Gaussian noise to every gradient, reproducible with `seed`.

    Each parameter has a separate generator, so its noise does not depend on other parameters or global generators.
    For complex gradients, `std` applies to the real and to the imaginary part. If the loss is scaled, pass the
    GradScaler as `scaler`: `std` then applies to the unscaled gradients.

    Returns  nothing
    Errors   BadOption if std is negative or not finite, no parameter requires grad, the parameters are sharded, a
             gradient is sparse, or `scaler` is missing (the last two also raised by the backward pass)
    Source   Neelakantan et al. 2015, arXiv:1511.06807, eq. 1, with a constant standard deviation

    Example
        >>> with add_gradient_noise(model, std=0.01):
        ...     model(images).sum().backward()
        >>> round(model.fc.bias.grad.std().item(), 2)
        0.01
    """
    _check_number("std", std, least=0)
    scale = scale_of(scaler, "add_gradient_noise")
    edits: Edits = {}
    instead = f"After backward, add torch.randn_like(parameter.grad) * {std} to each gradient."
    for index, tensor in enumerate(gather(params, instead).values()):
        # Neighboring seeds must not share streams, such as parameter 1 of one run and parameter 0 of the next.
        generator = torch.Generator(tensor.device).manual_seed((seed * 1_000_003 + index) % 2**63)
        edits[tensor] = partial(_add_noise, generator=generator, std=std, scale=scale)
    with not_sharded_inside(params, instead), edit_gradients(edits):
        yield


def _add_noise(gradient: Tensor, generator: torch.Generator, std: float, scale: Callable[[Tensor], Any]) -> Tensor:
    if gradient.layout is not torch.strided:
        raise BadOption(
            "add_gradient_noise does not support sparse gradients, since noise fills all rows. Use "
            "nn.Embedding(sparse=False), or pass the other parameters."
        )
    shape = (*gradient.shape, 2) if gradient.is_complex() else gradient.shape
    noise = torch.randn(shape, generator=generator, device=gradient.device, dtype=torch.float32)
    noise = torch.view_as_complex(noise) if gradient.is_complex() else noise
    return gradient + (std * scale(gradient) * noise).to(gradient.dtype)


def _check_number(name: str, value: Any, *, above: float | None = None, least: float | None = None) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or (above is not None and value <= above) or (least is not None and value < least):
        bound = f"above {above:g}" if above is not None else f"of at least {least:g}" if least is not None else ""
        raise BadOption(f"Invalid {name}={shorten(value)}. Pass a finite number {bound}".rstrip() + ".")
