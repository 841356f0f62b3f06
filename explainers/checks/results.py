"""What an explainer promises of its results and of what it leaves behind; robustness.py has the rest.

Each promise is a small function that measures one of them on an explainer under trial.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from explainers.checks.context import Fail, Outcome, Skip, Trial, agree, distance_of, promise, untouched
from explainers.checks.fixtures import Fault, failing, steps
from explainers.hooks.edit import edit_outputs

# What comes back


@promise
def shape(t: Trial) -> Outcome:
    result, images = t.plain(), t.images()
    if not isinstance(result, Tensor):
        raise Fail(f"The result is a {type(result).__name__}, not a Tensor.")
    n, c, h, w = images.shape
    kind = t.kind(result)
    fits = {
        "pixels": tuple(result.shape) == (n, c, h, w),
        "heat": tuple(result.shape) == (n, h, w),
        "grid": result.ndim == 3 and len(result) == n and result.shape[1] <= h and result.shape[2] <= w,
        "channels": result.ndim == 2 and len(result) == n,
        "features": result.ndim == 4 and len(result) == n,
    }
    if not fits.get(kind):
        raise Fail(f"{kind} of images {tuple(images.shape)} came back as {tuple(result.shape)}.")
    return None, f"{kind} {tuple(result.shape)} of images {tuple(images.shape)}."


@promise
def finite_and_detached(t: Trial) -> Outcome:
    result = t.plain()
    wrong = int((~result.isfinite()).sum())
    if wrong:
        raise Fail(f"{wrong} of {result.numel()} values are NaN or infinite.", wrong)
    if result.requires_grad or result.is_inference():
        raise Fail("The result requires grad." if result.requires_grad else "The result is an inference tensor.")
    if result.dtype != torch.float32 or result.device != t.images().device:
        raise Fail(f"The result is {result.dtype} on {result.device}, the images {t.images().dtype}.")
    return None, "Finite, detached, float32."


@promise
def raw_units(t: Trial) -> Outcome:
    """Scores a thousand times larger must show: a map scaled by its own range cannot be compared with another."""
    if reason := getattr(t.function, "scale_free", ""):
        raise Skip(str(reason))
    if not t.reads_class():
        raise Skip("The class makes no difference to this method.")
    model = t.model()
    heads = [m for m in model.modules() if isinstance(m, nn.Linear)]
    before = t.call(model, t.images(), 1, **t.signed())
    if not heads or t.kind(before) == "features" or not before.any():
        raise Skip("No linear head to scale, or nothing that depends on it.")
    with torch.no_grad():
        for parameter in heads[-1].parameters():
            parameter.mul_(1000)
    after = t.call(model, t.images(), 1, **t.signed())
    ratio = float(after.norm() / before.norm())
    if ratio < 2:
        raise Fail("Scores times 1000 leave the map as it is: it is scaled, not raw.", ratio)
    return ratio, "Scores times 1000 change the map by this factor."


@promise
def repeatable(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    return agree(t.call(model, images), t.call(model, images), "Two equal calls", 0.0)


@promise
def batch_is_one_by_one(t: Trial) -> Outcome:
    model, images, signed = t.model(), t.images(), t.signed()
    together = t.call(model, images, [0, 1, 2], **signed)
    alone = torch.cat([t.call(model, images[i : i + 1], [i], **signed) for i in range(3)])
    turned = t.call(model, images[[2, 0, 1]], [2, 0, 1], **signed)
    agree(turned, together[[2, 0, 1]], "Another order of the pictures and their order")
    return agree(together, alone, "A batch and its pictures one by one")


@promise
def targets_mean_the_same(t: Trial) -> Outcome:
    if not t.reads_class():
        raise Skip("The class makes no difference to this method.")
    model, images, signed = t.model(), t.images(), t.signed()
    expected = t.call(model, images, [1, 1, 1], **signed)
    forms = {"an int": 1, "a tensor": torch.tensor([1, 1, 1]), "a callable": lambda scores: scores[:, 1]}
    for name, form in forms.items():
        agree(t.call(model, images, form, **signed), expected, f"{name} and a list as target")
    with torch.no_grad():
        top = model(images).argmax(1).tolist()
    named = t.call(model, images, top, **signed)
    return agree(t.call(model, images, None, **signed), named, "No target and the top classes")


# What stays behind


def _used(t: Trial) -> nn.Module:
    """A model in use: gradients accumulated on all parameters but the first, and one of them frozen."""
    model = t.model()
    parameters = list(model.parameters())
    for parameter in parameters[1:]:
        parameter.grad = torch.full_like(parameter, 7.0)
    for parameter in parameters[2:3]:
        parameter.requires_grad_(False)
    return model


@promise
def nothing_left_after_success(t: Trial) -> Outcome:
    model, images = _used(t), t.images()
    untouched(model, images, lambda: t.call(model, images, [0, 1, 2]), "by an ordinary call")
    return None, "Hooks, gradients, flags, modes, attributes, images, generators and global state are as before."


@promise
def nothing_left_after_failure(t: Trial) -> Outcome:
    model, images = _used(t), t.images()
    names = steps(model, images)
    tried = 0
    for step in dict.fromkeys((names[0], names[len(names) // 2], names[-1])):
        for error, after in ((Fault("put in"), 0), (Fault("put in"), 1), (KeyboardInterrupt(), 0)):
            with failing(model, step, error, after) as state:
                caught: list[BaseException] = []
                untouched(model, images, lambda c=caught: _catch(t, model, images, c), f"by an error in {step!r}")  # type: ignore[misc]
            if state.raised and not (caught and caught[0] is error):
                raise Fail(f"{type(error).__name__} in {step!r} did not reach the caller; {caught or 'nothing'} did.")
            tried += state.raised
    if not tried:
        raise Skip("The method never ran the modules that were to fail.")
    return tried, "faults inside the model: nothing left, and each reached the caller as it was."


def _catch(t: Trial, model: nn.Module, images: Tensor, caught: list[BaseException]) -> None:
    try:
        t.call(model, images, [0, 1, 2])
    except BaseException as error:
        caught.append(error)


@promise
def nothing_left_after_wrong_target(t: Trial) -> Outcome:
    model, images = _used(t), t.images()
    for target in (10**6, [0, 1], -1):
        untouched(model, images, lambda wrong=target: attempt(t, model, images, wrong), f"by target={target}")  # type: ignore[misc]
    return None, "As after success."


def attempt(t: Trial, model: nn.Module, images: Tensor, target: Any = None, **options: Any) -> Exception | None:
    try:
        t.call(model, images, target, **options)
    except Exception as error:
        return error
    return None


def ordinary_use(model: nn.Module, images: Tensor) -> list[Tensor]:
    """What a user does with a model: a prediction, the input's gradient, the weights' gradients of a training step."""
    x = images.clone().requires_grad_()
    scores = model(x)
    weights = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(scores[:, 1].sum(), [x, *weights], allow_unused=True)
    return [scores.detach(), *(g for g in gradients if g is not None)]


@promise
def model_works_after_failure(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    before = ordinary_use(model, images)
    with failing(model, steps(model, images)[-1], Fault("put in")):
        attempt(t, model, images)
    attempt(t, model, images, 10**6)
    worst = max(distance_of(a, b) for a, b in zip(ordinary_use(model, images), before, strict=True))
    if worst:
        raise Fail("After a failure, prediction or gradients of the model are others than before.", worst)
    return worst, "Prediction and gradients are bit-equal after failures."


@promise
def nothing_kept_alive(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    alive: list[weakref.ref[Tensor]] = [weakref.ref(images)]

    def watch(output: Any) -> None:
        if isinstance(output, Tensor):
            alive.append(weakref.ref(output))

    with edit_outputs(model, dict.fromkeys(steps(model, images), watch)):
        result = t.call(model, images)
    del images
    gc.collect()
    kept = sum(reference() is not None and reference() is not result for reference in alive)
    if kept:
        raise Fail(f"{kept} of {len(alive)} tensors of the call are still alive after it.", kept)
    return kept, f"of {len(alive)} tensors of the call are alive after it."
