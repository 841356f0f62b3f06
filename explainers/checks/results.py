"""Checks of a method's results and side effects. The other checks are in robustness.py."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from explainers.checks.context import Context, Fail, Outcome, Skip, agree, check, distance_of, unchanged
from explainers.checks.fixtures import Fault, failing, steps
from explainers.errors import kind_of, shorten
from explainers.hooks.edit import edit_outputs

# Results


@check
def shape(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    result = t.call(model, images)
    if not isinstance(result, Tensor):
        raise Fail(f"The result is {kind_of(result)}, not a Tensor.")
    n, c, h, w = images.shape
    kind = t.kind(result)
    is_valid = {
        "pixels": tuple(result.shape) == (n, c, h, w),
        "heat": tuple(result.shape) == (n, h, w),
        "grid": result.ndim == 3 and len(result) == n and result.shape[1] <= h and result.shape[2] <= w,
        "channels": result.ndim == 2 and len(result) == n,
        "features": result.ndim == 4 and len(result) == n,
    }
    is_turned = kind in ("grid", "features") and (result.shape[-2] - result.shape[-1]) * (h - w) < 0
    if not is_valid.get(kind) or is_turned:
        raise Fail(f"The result of kind {kind!r} has shape {tuple(result.shape)} for images {tuple(images.shape)}.")
    return None, f"{kind} {tuple(result.shape)} for images {tuple(images.shape)}."


@check
def finite_and_detached(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    result = t.fresh()
    wrong = int((~result.isfinite()).sum())
    if wrong:
        raise Fail(f"{wrong} of {result.numel()} values are NaN or infinite.", wrong)
    if result.requires_grad or result.is_inference():
        raise Fail("The result requires grad." if result.requires_grad else "The result is an inference tensor.")
    if result.dtype != torch.float32 or result.device != t.images().device:
        raise Fail(f"The result is {result.dtype} on {result.device}, but it must be float32 on {t.images().device}.")
    return None, "Finite, detached, float32."


def _head(t: Context, model: nn.Module) -> nn.Linear:
    """Return the last linear layer, whose scores the checks of units change."""
    if not t.reads_class:
        raise Skip("This method does not depend on the class.")
    heads = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not heads:
        raise Skip("The model has no linear head.")
    return heads[-1]


@check
def raw_units(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    """Check that multiplying the scores by 1000 changes the map: maps scaled by their own range are not comparable."""
    if reason := getattr(t.function, "scale_free", ""):
        raise Skip(str(reason))
    head = _head(t, model)
    before = t.call(model, t.images(), 1, **t.signed())
    if t.kind(before) == "features" or not before.any():
        raise Skip("The map does not depend on the size of the scores.")
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(1000)
    after = t.call(model, t.images(), 1, **t.signed())
    ratio = float(after.norm() / before.norm())
    if ratio < 2:
        raise Fail("Multiplying the scores by 1000 does not change the map, so it is normalized, not raw.", ratio)
    return ratio, "Multiplying the scores by 1000 changes the map by this factor."


@check
def constant_in_scores(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    """Check that a constant added to all scores does not change the map: it favors no class."""
    signed = t.signed()
    head = _head(t, model)
    if head.bias is None:
        raise Skip("The head has no bias to change.")
    before = t.call(model, images, 1, **signed)
    with torch.no_grad():
        head.bias.sub_(2 * model(images).max() + 10)  # changes the sign of positive scores
    return agree(t.call(model, images, 1, **signed), before, "Maps with and without a constant added to all scores")


@check
def nan_in_weights(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    """Check that a NaN in the network gives an error or NaN in the map, never a map that looks right."""
    before = t.call(model, images, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.flatten()[0] = torch.nan
    try:
        result = t.call(model, images, 1)
    except (ValueError, RuntimeError) as error:
        return None, f"NaN in the weights raise {type(error).__name__}."
    if torch.equal(result, before):
        raise Skip("The map does not depend on the weights.")
    if result.isfinite().all():
        raise Fail("The weights contain NaN, but the map is finite.")
    return None, "NaN in the weights are visible in the map."


@check
def repeatable(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    first = t.call(model, images)
    kept = first.clone()
    first.fill_(7)  # must not reach the model, the images or the next result
    return agree(t.call(model, images), kept, "Two identical calls", 0.0)


@check
def batch_independence(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    signed = t.signed()
    together = t.call(model, images, [0, 1, 2], **signed)
    separate = torch.cat([t.call(model, images[i : i + 1], [i], **signed) for i in range(3)])
    permuted = t.call(model, images[[2, 0, 1]], [2, 0, 1], **signed)
    agree(permuted, together[[2, 0, 1]], "Maps of permuted images and permuted maps")
    return agree(together, separate, "Maps of a batch and of its images one by one")


@check
def equivalent_targets(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    if not t.reads_class:
        raise Skip("This method does not depend on the class.")
    signed = t.signed()
    expected = t.call(model, images, [1, 1, 1], **signed)
    forms = {
        "an int": 1,
        "a tuple": (1, 1, 1),
        "a tensor": torch.tensor([1, 1, 1]),
        "a callable": lambda scores: scores[:, 1],
    }
    for name, form in forms.items():
        agree(t.call(model, images, form, **signed), expected, f"{name} and a list as target")
    with torch.no_grad():
        top = model(images).argmax(1).tolist()
    named = t.call(model, images, top, **signed)
    return agree(t.call(model, images, None, **signed), named, "No target and the top classes")


# Side effects


def _put_in_training(model: nn.Module) -> nn.Module:
    """Give all parameters of the model except the first accumulated gradients, freeze one, and return the model."""
    parameters = list(model.parameters())
    for parameter in parameters[1:]:
        parameter.grad = torch.full_like(parameter, 7.0)
    for parameter in parameters[2:3]:
        parameter.requires_grad_(False)
    return model


@check
def no_side_effects(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    _put_in_training(model)
    unchanged(model, images, lambda: t.call(model, images, [0, 1, 2]), "by a normal call")
    return None, "Hooks, gradients, flags, modes, attributes, images, generators and global state are unchanged."


@check
def no_side_effects_after_error(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    names = steps(model, images)
    tried = 0
    faults = [(Fault("injected"), 0, False), (Fault("injected"), 1, False), (KeyboardInterrupt(), 0, False)]
    for step in dict.fromkeys((names[0], names[len(names) // 2], names[-1])):
        for error, after, backward in [*faults, (Fault("injected in the backward pass"), 0, True)]:
            used = _put_in_training(t.model())
            with failing(used, step, error, after, backward) as state:
                call = functools.partial(t.call, used, images, [0, 1, 2])
                act = functools.partial(attempt, call, BaseException)
                caught = unchanged(used, images, act, f"by an error in {step!r}")
            if state.raised and (caught is None or not (caught is error or backward)):
                got = [caught] if caught else "none"
                raise Fail(f"{type(error).__name__} in {step!r} did not reach the caller, which got {got}.")
            tried += state.raised
    if not tried:
        raise Skip("The method did not run the modules that were set to fail.")
    return tried, "faults inside the model left no side effects, and each error reached the caller unchanged."


@check
def no_side_effects_after_bad_target(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    _put_in_training(model)
    for target in (10**6, [0, 1], -1, lambda scores: 1 / 0):
        call = functools.partial(t.call, model, images, target)
        unchanged(model, images, functools.partial(attempt, call), f"by target={shorten(target)}")
    return None, "The state is unchanged after invalid targets."


def attempt(call: Callable[[], Tensor], caught: type[BaseException] = Exception) -> BaseException | None:
    """Make a call and return the error that it raised, if any."""
    try:
        call()
    except caught as error:
        return error
    return None


def ordinary_use(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return a user's own results: the scores, the gradient of the input, and those of the weights in `.grad`."""
    with torch.no_grad():
        if model(images).requires_grad:
            raise Fail("The grad mode of another thread has changed.")
    model.zero_grad(set_to_none=True)
    x = images.clone().requires_grad_()
    scores = model(x)
    scores[:, 1].sum().backward()
    return [scores.detach(), *(p.grad.clone() for p in (x, *model.parameters()) if p.grad is not None)]


@check
def model_works_after_failure(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    before = ordinary_use(model, images)
    with failing(model, steps(model, images)[-1], Fault("injected")):
        attempt(lambda: t.call(model, images))
    attempt(lambda: t.call(model, images, 10**6))
    worst = max(distance_of(a, b) for a, b in zip(ordinary_use(model, images), before, strict=True))
    if worst:
        raise Fail("After a failure, the model's predictions or gradients have changed.", worst)
    return worst, "Predictions and gradients are bit-identical after failures."


@check
def no_memory_leak(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    model, images = t.model(), t.images()  # the caller may keep those that it gave
    alive: list[weakref.ref[Tensor]] = [weakref.ref(images)]

    def watch(output: Any) -> None:
        if isinstance(output, Tensor):
            alive.append(weakref.ref(output))

    with edit_outputs(model, dict.fromkeys(steps(model, images), watch)):
        result = t.call(model, images)
    freed = weakref.ref(model)
    del images, model
    gc.collect()
    if freed() is not None:
        raise Fail("The model is still in memory after it was deleted.")
    count = sum(reference() is not None and reference() is not result for reference in alive)
    if count:
        raise Fail(f"{count} of {len(alive)} tensors of the call are still in memory after it.", count)
    return count, f"of {len(alive)} tensors of the call are still in memory after it."
