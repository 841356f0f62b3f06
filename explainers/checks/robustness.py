"""Checks of robustness: modes, precisions, seeds, chunk sizes, threads, and errors for invalid arguments."""

from __future__ import annotations

import functools
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.layers import default_layer, list_layers
from explainers.checks.context import CLOSE, Context, Fail, Outcome, Skip, agree, check, distance_of, unchanged
from explainers.checks.fixtures import Fault, Pause
from explainers.checks.results import attempt, ordinary_use
from explainers.hooks.locate import find_hook_point, unwrap

EXPECTED_ERRORS = (ValueError, TypeError)
CONCURRENT_USES = 4

# Modes and precisions


@check
def train_mode_unchanged(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    expected = t.call(model, images, 1)
    model.train()
    _agree_unchanged(t, model, images, expected, "train mode")
    list(model.children())[-1].eval()
    return _agree_unchanged(t, model, images, expected, "train mode with one part in eval mode")


def _agree_unchanged(t: Context, model: nn.Module, images: Tensor, expected: Tensor, where: str) -> Outcome:
    """Call the method without side effects, and compare its map with the expected one."""
    actual = unchanged(model, images, lambda: t.call(model, images, 1), f"by a call with {where}")
    if actual.is_inference():
        raise Fail(f"The map with {where} is an inference tensor.")
    return agree(actual, expected, f"Maps with {where} and the map without it")


@check
def grad_modes_and_frozen_weights(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    expected = t.call(model, images, 1)
    for name, mode in (("no_grad", torch.no_grad()), ("inference_mode", torch.inference_mode())):
        with mode:
            _agree_unchanged(t, model, images, expected, name)
    with torch.inference_mode():
        inference_model, inference_images = t.model(), images.clone()
    _agree_unchanged(t, model, inference_images, expected, "images that are inference tensors")
    _agree_unchanged(t, inference_model, images, expected, "weights that are inference tensors")
    with_gradient = images.clone().requires_grad_()
    with_gradient.grad = torch.full_like(images, 7)
    _agree_unchanged(t, model, with_gradient, expected, "images that have a gradient")
    outcome = _agree_unchanged(t, model.requires_grad_(False), images, expected, "frozen weights")
    return outcome[0], "no_grad, inference_mode, inference tensors, requires_grad and frozen weights give the same map."


@check
def float64(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    double = t.call(t.model(torch.float64), t.images(torch.float64), 1)
    if double.dtype != torch.float64:
        raise Fail(f"A float64 model returns {double.dtype}.")
    if "seed" in t.keywords:
        # Random numbers differ between precisions, so the maps may differ as much as those of two seeds.
        return None, "A float64 model returns float64."
    return agree(t.call(model, images, 1), double, "float32 and float64", 1e-2)


@check
def half_precision(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    expected, worst = t.call(model, images, 1), 0.0
    done: list[str] = []
    for dtype in (torch.bfloat16, torch.float16):
        try:
            t.model(dtype)(t.images(dtype))
        except RuntimeError:
            continue
        result = t.call(t.model(dtype), t.images(dtype), 1)
        if result.dtype != torch.float32 or not result.isfinite().all():
            wrong = int((~result.isfinite()).sum())
            raise Fail(f"{dtype} gives {result.dtype} maps with {wrong} non-finite values.")
        worst = max(worst, distance_of(result, expected))
        done.append(str(dtype).removeprefix("torch."))
    if not done:
        raise Skip("The model does not run in half precision on this machine.")
    return worst, f"relative distance from float32; {' and '.join(done)} give finite float32 maps."


@check
def channels_last(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    expected = t.call(model, images, 1)
    _agree_unchanged(t, model, images.mT.contiguous().mT, expected, "images of other strides")
    one = images[:1].expand(3, -1, -1, -1)
    agree(t.call(model, one, 1), expected[:1].expand_as(expected), "Maps of an expanded image and of the image")
    last = images.contiguous(memory_format=torch.channels_last)
    return _agree_unchanged(t, model.to(memory_format=torch.channels_last), last, expected, "channels_last")


@check
def any_number_of_channels(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    if not t.is_built_in:
        raise Skip("Only the built-in model supports other numbers of channels.")
    for channels in (1, 6):
        result = t.call(t.built_in(channels), t.images(channels=channels))
        if len(result) != 3 or not result.isfinite().all():
            raise Fail(f"Images with {channels} channels give shape {tuple(result.shape)} or non-finite values.")
    return None, "Images with 1 and 6 channels work."


@check
def wrapped_and_traced(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    expected = t.call(model, images, 1)
    if not torch.cuda.is_available():
        agree(t.call(nn.DataParallel(model), images, 1), expected, "Maps with and without DataParallel")
    traced = torch.jit.trace(model, images, check_trace=False)
    try:
        result = t.call(traced, images, 1)
    except (*EXPECTED_ERRORS, NotImplementedError) as error:
        return None, f"DataParallel is unwrapped; a traced model raises {type(error).__name__}."
    return agree(result, expected, "Maps of a traced model and of the original")


# Seeds, chunks, progress


@check
def seed(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    if "seed" not in t.keywords:
        raise Skip("The method has no option 'seed'.")
    # The seed may affect only the noise baseline.
    noise: dict[str, Any] = {"baseline": "noise"} if "baseline" in t.keywords else {}
    if "layer" in t.keywords:
        # At a layer followed only by linear layers, noise does not change the gradient.
        noise["layer"] = list_layers(model, images, spatial=True)[0].name
    first = t.call(model, images, 1, seed=3, **noise)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        agree(t.call(model, images, 1, seed=3, **noise), first, "Two calls with the same seed", 0.0)
    alone = t.call(model, images[1:2], 1, seed=3, **noise)
    agree(alone, first[1:2], "Maps of an image alone and in a batch with the same seed")
    other = distance_of(t.call(model, images, 1, seed=4, **noise), first)
    if other == 0:
        raise Fail("Two different seeds give the same map.")
    return other, "relative distance with another seed; bit-identical with the same seed."


@check
def batch_size(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    if "batch_size" not in t.keywords:
        raise Skip("The method has no option 'batch_size'.")
    expected = t.call(model, images, 1, batch_size=1)
    agree(t.call(model, images, 1, batch_size=1000), expected, "Maps with batch_size=1000 and batch_size=1")
    return agree(t.call(model, images, 1, batch_size=5), expected, "Maps with batch_size=5 and batch_size=1")


@check
def progress_and_stop(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    if "progress" not in t.keywords:
        raise Skip("The method has no option 'progress'.")
    fractions: list[float] = []
    chunk = {"batch_size": 4} if "batch_size" in t.keywords else {}
    full = t.call(model, images, 1, progress=lambda partial: fractions.append(float(partial.fraction)), **chunk)
    if not fractions or sorted(fractions) != fractions or not 0 < fractions[-1] <= 1:
        raise Fail(f"The reported fractions start with {fractions[:5]} and do not increase within (0, 1].")
    stopped = t.call(model, images, 1, progress=lambda partial: False, **chunk)
    if stopped.shape != full.shape or not stopped.isfinite().all():
        shapes = f"{tuple(stopped.shape)} instead of {tuple(full.shape)}"
        raise Fail(f"Stopped at the first report, the map has shape {shapes}, or non-finite values.")
    fault = Fault("by progress")

    def fail(partial: Any) -> None:
        raise fault

    call = functools.partial(t.call, model, images, 1, progress=fail, **chunk)
    if unchanged(model, images, lambda: attempt(call), "by an error in progress") is not fault:
        raise Fail("An error raised by progress did not reach the caller.")
    return len(fractions), "reports; returning False stops with a map; errors in progress reach the caller."


# Threads


def _paused(model: nn.Module, seconds: float) -> None:
    for module in model.modules():
        if isinstance(module, Pause):
            module.clock.seconds = seconds


@check
def concurrent_calls(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    expected = [t.call(model, images[i : i + 1], [i]) for i in range(3)]
    _paused(model, 0.002)

    def work(i: int) -> list[str]:
        wrong = []
        for _ in range(3):
            try:
                if distance_of(t.call(model, images[i : i + 1], [i]), expected[i]) > CLOSE:
                    wrong.append("a different map")
            except Exception as error:
                wrong.append(type(error).__name__)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        wrong = list(itertools.chain.from_iterable(pool.map(work, (0, 1, 2, 0))))
    if wrong:
        raise Fail(f"{len(wrong)} of 12 calls in 4 threads failed: {', '.join(sorted(set(wrong)))}.", len(wrong))
    return 0, "of 12 calls in 4 threads on one model failed."


@check
def other_threads_unaffected(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    return _use_in_other_thread(t, t.model(), "predictions and gradients")


@check
def training_in_other_thread(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    """Check that neither a training step meets a part in eval mode, nor an explanation one in train mode."""
    model = t.model().train()
    for module in model.modules():
        for name in ("momentum", "p"):  # of batch norm and dropout: training steps then repeat exactly
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return _use_in_other_thread(t, model, "training steps")


def _use_in_other_thread(t: Context, model: nn.Module, what: str) -> Outcome:
    images = t.images()
    expected, expected_map = ordinary_use(model, images), t.fresh(1)
    _paused(model, 0.002)
    overlapped = threading.Event()
    distances: list[float] = []

    def explain() -> None:
        # Make at least three calls, and continue until ordinary use has overlapped with them, even on a busy machine.
        try:
            while len(distances) < 3 or not overlapped.is_set():
                distances.append(distance_of(t.call(model, images, 1), expected_map))
        except Exception:
            distances.append(float("inf"))

    explaining = threading.Thread(target=explain)
    wrong = done = 0
    explaining.start()
    while explaining.is_alive():
        done += 1
        if done == CONCURRENT_USES:
            overlapped.set()
        try:
            wrong += any(not torch.equal(a, b) for a, b in zip(ordinary_use(model, images), expected, strict=True))
        except Exception:
            wrong += 1
    explaining.join()
    if wrong or max(distances) > CLOSE:
        wrong_maps = sum(distance > CLOSE for distance in distances)
        raise Fail(f"{wrong} of {done} concurrent {what} and {wrong_maps} of {len(distances)} maps were wrong.", wrong)
    return 0, f"of {done} concurrent {what} were disturbed."


# Invalid arguments


@check
def invalid_images_rejected(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    broken = {"NaN": images.clone(), "infinity": images.clone()}
    for name, value in (("NaN", torch.nan), ("infinity", torch.inf)):
        broken[name][:, 0, 2, 3] = value  # in every image; if others are finite, a method may explain those
    cases: dict[str, Any] = {"integers": images.long(), "bytes": images.byte(), **broken}
    cases |= {"no batch": images[0], "an empty batch": images[:0], "a NumPy array": images.numpy()}
    return _check_rejected(t, model, {name: (wrong,) for name, wrong in cases.items()})


@check
def invalid_targets_rejected(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    if not t.reads_class:
        raise Skip("This method does not depend on the class.")
    wrong: dict[str, Any] = {"class 10**6": 10**6, "class -1": -1, "-1 in a list": [0, -1, 1], "True": True}
    wrong |= {"2 for 3 images": [0, 1], "4 for 3 images": [0, 1, 1, 0], "text": "cat"}
    wrong |= {"a sum over images": lambda scores: scores.sum(), "scores of one image": lambda scores: scores[:1, 0]}
    return _check_rejected(t, model, {name: (t.images(), target) for name, target in wrong.items()})


def _check_rejected(t: Context, model: nn.Module, cases: dict[str, tuple[Any, ...]]) -> Outcome:
    accepted = []
    for name, arguments in cases.items():
        error = attempt(functools.partial(t.call, model, *arguments))
        if not isinstance(error, EXPECTED_ERRORS) or len(str(error)) < 15:
            accepted.append(f"{name} ({'accepted' if error is None else type(error).__name__})")
    if accepted:
        names = ", ".join(accepted)
        raise Fail(f"These do not raise a ValueError or TypeError with a message: {names}.", len(accepted))
    return len(cases), f"invalid inputs are rejected with a message: {', '.join(cases)}."


@check
def layers(t: Context, model: nn.Module, images: Tensor) -> Outcome:
    if "layer" not in t.keywords:
        raise Skip("The method has no option 'layer'.")
    name = default_layer(model, images)
    path = name.partition("#")[0]
    by_name = t.call(model, images, 1, layer=name)
    if path == name:
        module = find_hook_point(unwrap(model), name).module
        agree(t.call(model, images, 1, layer=module), by_name, "Maps of a layer by its name and by its module", 0.0)
    else:
        # The module runs several times, so its name is ambiguous without the number of the call.
        error = attempt(lambda: t.call(model, images, 1, layer=path))
        if not isinstance(error, EXPECTED_ERRORS) or repr(name) not in str(error):
            raise Fail(f"layer={path!r} runs repeatedly, but did not raise an error that lists {name!r}.")
    error = attempt(lambda: t.call(model, images, 1, layer=f"{path}x"))
    if not isinstance(error, EXPECTED_ERRORS) or repr(path) not in str(error):
        raise Fail(f"layer={path + 'x'!r} did not raise an error that suggests {path!r}.")
    how = "by name and by module" if path == name else "by the name of its call"
    return None, f"{name!r} is found {how}, and suggested for a misspelled name."
