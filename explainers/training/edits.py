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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption, WrongType, check_type, nearest, shorten
from explainers.hooks.calls import Edit
from explainers.hooks.edit import edit_gradients, edit_together, watch_gradients
from explainers.hooks.locate import find_hook_point, unwrap
from explainers.options import LayerName, check_finite, check_whole
from explainers.training.log import STATISTICS, GradientLog
from explainers.training.parameters import (
    Params,
    Scaler,
    gather,
    match_names,
    match_parameters,
    not_sharded_inside,
    scale_of,
)

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
    a second copy of the gradients, and blocks entered later receive the accumulated gradient, not that of the last
    pass. `torch.autograd.grad` does not write `.grad`, so `norm` does not apply to it. If both are given, `value` is
    applied first. If the loss is scaled, pass the GradScaler as `scaler`: the limits then apply to the unscaled
    gradients. An optimizer in a hook uses the gradients before their norm is known, so `norm` raises an error; `value`
    applies to it.

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
            check_finite(name, limit, "a finite number above 0", above=0)
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
        check_finite(f"factors[{pattern!r}]", factor)
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
    check_type("tensor", tensor, Tensor, "a tensor that requires grad, such as model.fc.bias")
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
    check_finite("std", std, "a finite number of at least 0", least=0)
    check_whole(0, seed=seed)
    scale = scale_of(scaler, "add_gradient_noise")
    edits: Edits = {}
    instead = f"After backward, add torch.randn_like(parameter.grad) * {std} to each gradient."
    for index, tensor in enumerate(gather(params, instead).values()):
        # Neighboring seeds must not share streams, such as parameter 1 of one run and parameter 0 of the next.
        generator = torch.Generator(tensor.device).manual_seed((int(seed) * 1_000_003 + index) % 2**63)
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


INSTEAD = (
    "After backward, read parameter.grad.full_tensor(), or for FullyShardedDataParallel read parameter.grad in `with "
    "FullyShardedDataParallel.summon_full_params(model, with_grads=True):`."
)


@contextmanager
def record_gradients(
    model_or_tensors: nn.Module | Mapping[str, Tensor] | Iterable[Any],
    *,
    statistics: Sequence[str] = STATISTICS,
    histograms: int = 0,
    every: int = 1,
    patterns: str | Sequence[str] | None = None,
    activations: Sequence[LayerName] = (),
    limit: int = 100_000,
    scaler: Scaler = None,
) -> Iterator[GradientLog]:
    """Record statistics of the gradients of parameters or other tensors in each step of a training run.

    For a model, all parameters that require grad are recorded (with `patterns`, those whose dotted names match), and
    the outputs of the layers in `activations`. Tensors, leaf or intermediate, are passed by name or as a sequence.
    `histograms` is the number of bins, 0 for no histograms; `every=10` records steps 0, 10, 20 ...

    A step ends when the log's `step()` is called, or when a gradient of the step is recorded again. One backward pass
    is one step, even if gradients are accumulated over several. The gradient of this pass is recorded, including the
    edits of blocks entered earlier; if they changed it, the row's `unedited` contains the statistics before the edits.
    If the loss is scaled, pass the GradScaler as `scaler`: the unscaled gradients are recorded.

    `clip_gradients(norm=...)` clips the accumulated gradient. In a block entered after it, the row therefore describes
    the accumulated, clipped gradient, and `unedited` only the gradient of this pass. They describe the same gradient
    only if `zero_grad` is called before each pass. To record each pass separately, enter this block first.

    Under DistributedDataParallel, the averaged gradients of parameters are recorded, so every process has the same
    rows. Gradients of `activations` are those of the process's own images.

    Returns  a `GradientLog` of at most `limit` rows; it is complete at the end of the block and can be read later
    Errors   BadOption for an unknown statistic, a number out of range, a pattern without a match (with the three
             nearest names), tensors that do not require grad, sharded parameters, or a missing `scaler` (also raised by
             the backward pass); LayerNotFound, UnsupportedModel for `activations`
    Source   torch.Tensor.register_hook

    Example
        >>> with record_gradients(model, patterns="fc.*") as log:
        ...     model(images)[0, 281].backward()
        >>> log.names
        ('fc.weight', 'fc.bias')
    """
    lists = (Sequence, Set)
    check_type("statistics", statistics, lists, f"a list of {', '.join(STATISTICS)}")
    check_type("patterns", patterns, (*lists, type(None)), "a shell pattern such as 'layer4.*', or a list of them")
    check_type("activations", activations, lists, "a list of layers, such as ['layer4']")
    for name in [statistics] if isinstance(statistics, str) else statistics:
        if isinstance(statistics, str) or name not in STATISTICS:
            raise BadOption(
                f"Unknown statistics={shorten(name)}. {nearest(str(name), STATISTICS)}Choose from {STATISTICS}."
            )
    check_whole(0, histograms=histograms)
    check_whole(1, every=every, limit=limit)
    scale = scale_of(scaler, "record_gradients")
    model = unwrap(model_or_tensors) if isinstance(model_or_tensors, nn.Module) else None
    if model is None and activations:
        raise BadOption("activations needs a model, but tensors were passed. Pass the model.")
    tensors = {}
    # The parameters of a frozen model are not recorded if there are `activations`.
    if model is None or not activations or any(parameter.requires_grad for parameter in model.parameters()):
        tensors = gather(model_or_tensors, INSTEAD)
    if tensors and patterns is not None:
        listed = [patterns] if isinstance(patterns, str) else patterns
        chosen = {name for pattern in listed for name in match_names(pattern, tensors)}
        tensors = {name: tensor for name, tensor in tensors.items() if name in chosen}
    kinds = {name: "parameter" if isinstance(tensor, nn.Parameter) else "tensor" for name, tensor in tensors.items()}
    named: Sequence[LayerName] = [activations] if isinstance(activations, str) else activations
    layers = [find_hook_point(model, layer).name for layer in named] if model is not None else []
    log = GradientLog(tuple(statistics), limit, (*tensors, *layers))

    def record(name: str, call: int | None, gradient: Tensor, unedited: Tensor) -> None:
        kind = "activation" if call is not None else kinds[name]
        divisor = scale(gradient)
        if isinstance(divisor, Tensor):
            same = unedited is gradient
            gradient = _unscaled(gradient, divisor)
            unedited = gradient if same else _unscaled(unedited, divisor)
        log.record(name, call, kind, gradient, histograms=histograms, every=every, unedited=unedited)

    with (
        not_sharded_inside(model_or_tensors, INSTEAD),
        watch_gradients(tensors, record, model=None if model is None else model_or_tensors, layers=layers),  # type: ignore[arg-type]
    ):
        try:
            yield log
        finally:
            _ = log.rows  # transfers the waiting rows


def _unscaled(gradient: Tensor, scale: Tensor) -> Tensor:
    half = gradient.dtype in (torch.float16, torch.bfloat16)  # small gradients would become zero
    return (gradient.float() if half else gradient) / scale
