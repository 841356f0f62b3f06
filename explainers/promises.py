"""The promises of the library, each a small function that measures one of them on an explainer under trial.

`CHECKS` holds them by name in the order in which they run; the first one decides whether the others make sense.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .hooks import edit_outputs
from .layers import default_layer
from .probes import Fault, Pause, failing, steps, tiny
from .trial import CLOSE, Fail, Outcome, Skip, Trial, agree, distance_of, untouched

CHECKS: dict[str, Callable[[Trial], Outcome]] = {}
REFUSALS = (ValueError, TypeError)


def _promise(check: Callable[[Trial], Outcome]) -> Callable[[Trial], Outcome]:
    CHECKS[check.__name__] = check
    return check


# What comes back


@_promise
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


@_promise
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


@_promise
def raw_units(t: Trial) -> Outcome:
    """Scores a thousand times larger must show: a map scaled by its own range cannot be compared with another."""
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


@_promise
def repeatable(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    return agree(t.call(model, images), t.call(model, images), "Two equal calls", 0.0)


@_promise
def batch_is_one_by_one(t: Trial) -> Outcome:
    model, images, signed = t.model(), t.images(), t.signed()
    together = t.call(model, images, [0, 1, 2], **signed)
    alone = torch.cat([t.call(model, images[i : i + 1], [i], **signed) for i in range(3)])
    turned = t.call(model, images[[2, 0, 1]], [2, 0, 1], **signed)
    agree(turned, together[[2, 0, 1]], "Another order of the pictures and their order")
    return agree(together, alone, "A batch and its pictures one by one")


@_promise
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


@_promise
def nothing_left_after_success(t: Trial) -> Outcome:
    model, images = _used(t), t.images()
    untouched(model, images, lambda: t.call(model, images, [0, 1, 2]), "by an ordinary call")
    return None, "Hooks, gradients, flags, modes, attributes, images, generators and global state are as before."


@_promise
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


@_promise
def nothing_left_after_wrong_target(t: Trial) -> Outcome:
    model, images = _used(t), t.images()
    for target in (10**6, [0, 1], -1):
        untouched(model, images, lambda wrong=target: _try(t, model, images, wrong), f"by target={target}")  # type: ignore[misc]
    return None, "As after success."


def _try(t: Trial, model: nn.Module, images: Tensor, target: Any = None, **options: Any) -> Exception | None:
    try:
        t.call(model, images, target, **options)
    except Exception as error:
        return error
    return None


def _ordinary(model: nn.Module, images: Tensor) -> list[Tensor]:
    """What a user does with a model: a prediction, the input's gradient, the weights' gradients of a training step."""
    x = images.clone().requires_grad_()
    scores = model(x)
    weights = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(scores[:, 1].sum(), [x, *weights], allow_unused=True)
    return [scores.detach(), *(g for g in gradients if g is not None)]


@_promise
def model_works_after_failure(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    before = _ordinary(model, images)
    with failing(model, steps(model, images)[-1], Fault("put in")):
        _try(t, model, images)
    _try(t, model, images, 10**6)
    worst = max(distance_of(a, b) for a, b in zip(_ordinary(model, images), before, strict=True))
    if worst:
        raise Fail("After a failure, prediction or gradients of the model are others than before.", worst)
    return worst, "Prediction and gradients are bit-equal after failures."


@_promise
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


# Where it must work


@_promise
def train_mode_is_left_alone(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    expected = t.call(model, images, 1)
    model.train()
    actual: list[Tensor] = []
    untouched(model, images, lambda: actual.append(t.call(model, images, 1)), "by a call in train mode")
    return agree(actual[0], expected, "Maps in train and in eval mode")


@_promise
def grad_modes_and_frozen_weights(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    expected = t.call(model, images, 1)
    worst = 0.0
    for name, mode in (("no_grad", torch.no_grad()), ("inference_mode", torch.inference_mode())):
        with mode:
            result = t.call(model, images.clone(), 1)
        worst = max(worst, agree(result, expected, f"Maps under {name} and outside")[0] or 0)
    with torch.inference_mode():
        locked = images.clone()
    agree(t.call(model, locked, 1), expected, "Maps of inference tensors and of plain ones")
    agree(t.call(model, images.clone().requires_grad_(), 1), expected, "Maps of images that require grad and of others")
    model.requires_grad_(False)
    worst = max(worst, agree(t.call(model, images, 1), expected, "Maps with frozen and with free weights")[0] or 0)
    return worst, "no_grad, inference_mode, inference tensors, images requiring grad, frozen weights: the same map."


@_promise
def float64(t: Trial) -> Outcome:
    precise = t.call(t.model(torch.float64), t.images(torch.float64), 1)
    if precise.dtype != torch.float64:
        raise Fail(f"A float64 model gives {precise.dtype}.")
    if "seed" in t.keywords:
        # Generators draw other numbers in other precisions, so the maps may differ as two seeds do.
        return None, "float64 in, float64 out."
    return agree(t.plain(1), precise, "float32 and float64", 1e-2)


@_promise
def half_precision(t: Trial) -> Outcome:
    worst = 0.0
    done: list[str] = []
    for dtype in (torch.bfloat16, torch.float16):
        try:
            t.model(dtype)(t.images(dtype))
        except RuntimeError:
            continue
        result = t.call(t.model(dtype), t.images(dtype), 1)
        if result.dtype != torch.float32 or not result.isfinite().all():
            raise Fail(f"{dtype} gives {result.dtype}, {int((~result.isfinite()).sum())} values not finite.")
        worst = max(worst, distance_of(result, t.plain(1)))
        done.append(str(dtype).removeprefix("torch."))
    if not done:
        raise Skip("The model runs in no half precision here.")
    return worst, f"from float32; {' and '.join(done)} give finite float32 maps."


@_promise
def channels_last(t: Trial) -> Outcome:
    model = t.model().to(memory_format=torch.channels_last)
    images = t.images().contiguous(memory_format=torch.channels_last)
    return agree(t.call(model, images, 1), t.plain(1), "Memory formats")


@_promise
def any_number_of_channels(t: Trial) -> Outcome:
    if not t.own:
        raise Skip("Only the built-in model comes with other channels.")
    for channels in (1, 6):
        result = t.call(tiny(channels), t.images(channels=channels))
        if len(result) != 3 or not result.isfinite().all():
            raise Fail(f"Images of {channels} channels give {tuple(result.shape)}.")
    return None, "Images of 1 and 6 channels work."


@_promise
def wrapped_and_traced(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    expected = t.call(model, images, 1)
    if not torch.cuda.is_available():
        agree(t.call(nn.DataParallel(model), images, 1), expected, "A model in DataParallel and bare")
    traced = torch.jit.trace(model, images, check_trace=False)
    try:
        result = t.call(traced, images, 1)
    except (*REFUSALS, NotImplementedError) as refused:
        return None, f"DataParallel is unwrapped; a traced model is refused by {type(refused).__name__}."
    return agree(result, expected, "A traced model and its original")


# Chance, chunks, progress


@_promise
def seed(t: Trial) -> Outcome:
    if "seed" not in t.keywords:
        raise Skip("It takes no seed.")
    # Where only a baseline of noise is drawn, the seed has nothing to do without it.
    noise = {"baseline": "noise"} if "baseline" in t.keywords else {}
    first = t.plain(1, seed=3, **noise)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        agree(t.plain(1, seed=3, **noise), first, "Two calls with one seed", 0.0)
    other = distance_of(t.plain(1, seed=4, **noise), first)
    if other == 0:
        raise Fail("Another seed gives the same map.")
    return other, "apart with another seed, bit-equal with the same."


@_promise
def batch_size(t: Trial) -> Outcome:
    if "batch_size" not in t.keywords:
        raise Skip("It takes no batch_size.")
    return agree(t.plain(1, batch_size=1), t.plain(1, batch_size=5), "Chunks of 1 and of 5")


@_promise
def progress_and_stop(t: Trial) -> Outcome:
    if "progress" not in t.keywords:
        raise Skip("It takes no progress.")
    model, images, told = t.model(), t.images(), []
    chunk = {"batch_size": 4} if "batch_size" in t.keywords else {}
    whole = t.call(model, images, 1, progress=lambda partial: told.append(float(partial.fraction)), **chunk)
    if not told or sorted(told) != told or not 0 < told[-1] <= 1:
        raise Fail(f"The fractions told are {told[:5]} …, not rising to 1.")
    stopped = t.call(model, images, 1, progress=lambda partial: False, **chunk)
    if stopped.shape != whole.shape or not stopped.isfinite().all():
        raise Fail(f"Stopped at once it gives {tuple(stopped.shape)} instead of {tuple(whole.shape)}, or not finite.")
    fault = Fault("by progress")

    def burn(partial: Any) -> None:
        raise fault

    raised: list[Exception | None] = []
    stop = {"progress": burn, **chunk}
    untouched(model, images, lambda: raised.append(_try(t, model, images, 1, **stop)), "when progress raised")
    if raised != [fault]:
        raise Fail("What progress raised did not reach the caller.")
    return len(told), "reports; stops on False with a map, hands on what progress raises."


# Threads


def _paused(model: nn.Module, seconds: float) -> None:
    for module in model.modules():
        if isinstance(module, Pause):
            module.clock.seconds = seconds


@_promise
def threads_explain_side_by_side(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    alone = [t.call(model, images[i : i + 1], [i]) for i in range(3)]
    _paused(model, 0.002)
    wrong: list[str] = []

    def work(i: int) -> None:
        for _ in range(3):
            try:
                if distance_of(t.call(model, images[i : i + 1], [i]), alone[i]) > CLOSE:
                    wrong.append("another map")
            except Exception as error:
                wrong.append(type(error).__name__)

    threads = [threading.Thread(target=work, args=(i % 3,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise Fail(f"{len(wrong)} of 12 calls in 4 threads went wrong: {', '.join(sorted(set(wrong)))}.", len(wrong))
    return 0, "of 12 calls in 4 threads on one model went wrong."


@_promise
def other_threads_are_left_alone(t: Trial) -> Outcome:
    model, images = t.model(), t.images()
    expected = _ordinary(model, images)
    _paused(model, 0.002)
    explaining = threading.Thread(target=lambda: [_try(t, model, images) for _ in range(3)])
    wrong = done = 0
    explaining.start()
    while explaining.is_alive() or done < 2:
        done += 1
        try:
            wrong += any(not torch.equal(a, b) for a, b in zip(_ordinary(model, images), expected, strict=True))
        except Exception:
            wrong += 1
    explaining.join()
    if wrong:
        raise Fail(f"{wrong} of {done} ordinary predictions or gradients beside it were disturbed.", wrong)
    return 0, f"of {done} ordinary predictions and gradients beside it were disturbed."


# Wrong use


@_promise
def wrong_images_are_refused(t: Trial) -> Outcome:
    images = t.images()
    broken = images.clone()
    broken[1, 0, 2, 3] = torch.nan
    return _refused(t, {"integers": (images.long(),), "a NaN": (broken,), "no batch": (images[0],)})


@_promise
def wrong_targets_are_refused(t: Trial) -> Outcome:
    if not t.reads_class():
        raise Skip("The class makes no difference to this method.")
    wrong = {"class 10**6": 10**6, "class -1": -1, "True": True, "2 for 3 images": [0, 1], "text": "cat"}
    return _refused(t, {name: (t.images(), target) for name, target in wrong.items()})


def _refused(t: Trial, cases: dict[str, tuple[Any, ...]], **options: Any) -> Outcome:
    taken = []
    for name, given in cases.items():
        error = _try(t, t.model(), *given, **options)
        if not isinstance(error, REFUSALS) or len(str(error)) < 15:
            taken.append(f"{name} ({'taken' if error is None else type(error).__name__})")
    if taken:
        raise Fail(f"Not refused by a ValueError or TypeError that says why: {', '.join(taken)}.", len(taken))
    return len(cases), f"refused in words: {', '.join(cases)}."


@_promise
def layers(t: Trial) -> Outcome:
    if "layer" not in t.keywords:
        raise Skip("It takes no layer.")
    model, images = t.model(), t.images()
    name = default_layer(model, images)
    by_name = t.call(model, images, 1, layer=name)
    by_module = t.call(model, images, 1, layer=model.get_submodule(name))
    agree(by_module, by_name, "A layer by its name and by its module", 0.0)
    error = _try(t, t.model(), images, 1, layer=f"{name}x")
    if not isinstance(error, REFUSALS) or repr(name) not in str(error):
        raise Fail(f"layer={name + 'x'!r} was not refused with {name!r} as a near name.")
    return None, f"{name!r} is found by name and module; a wrong name is answered with it."
