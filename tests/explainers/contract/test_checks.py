"""check_explainer on a correct explainer, which passes every check, and on broken copies, which each fail one."""

from __future__ import annotations

import functools
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from explainers import check_explainer, saliency
from explainers.checks.context import Context, Skip
from explainers.checks.fixtures import changes, snapshot, tiny
from explainers.checks.report import CHECKS


def good(model: nn.Module, images: Tensor, target: Any = None) -> Tensor:
    return saliency(model, images, target)


KEPT: list[Tensor | nn.Module] = []
BOX: dict[str, Tensor] = {}


def first_layer(model: nn.Module) -> nn.Module:
    return next(model.children())


def use(*_: object) -> None:
    """Take what an expression of the table below has done."""


def scaled(g: Tensor) -> Tensor:
    """Each map is divided by its own maximum, as in pytorch-grad-cam and torchcam."""
    return g / g.abs().amax((1, 2, 3), keepdim=True)


def around(change: Callable[[nn.Module], Any], undo: Callable[[nn.Module, Any], object]) -> Callable[..., Tensor]:
    """An explainer that changes the model for its call; without `finally` the change stays after an error."""

    def explainer(m, x, t=None):
        state = change(m)
        result = good(m, x, t)
        undo(m, state)
        return result

    return explainer


def scale_weights(m: nn.Module, factor: float) -> None:
    next(m.parameters()).data.mul_(factor)


def swallows_errors(m, x, t=None):
    """As the context manager of pytorch-grad-cam."""
    try:
        return good(m, x, t)
    except RuntimeError:
        return x * 0


def disables_gradients_before_it_refuses(m, x, t=None):
    torch.set_grad_enabled(False)
    if isinstance(t, int) and t > 1000:
        raise ValueError(f"target={t} is out of range.")
    torch.set_grad_enabled(True)
    return good(m, x, t)


def needs_a_weight_with_gradient(m, x, t=None):
    """As pytorch-grad-cam and torchcam."""
    if not any(p.requires_grad for p in m.parameters()):
        raise RuntimeError("element 0 of tensors does not require grad")
    return good(m, x, t)


def shares_a_box(m, x, t=None):
    """State outside the call, as in pytorch-grad-cam, torchcam and captum."""
    BOX["images"] = x.detach().clone()
    with torch.no_grad():
        m(x)
    return good(m, BOX["images"], t)


def edits_what_all_threads_see(m, x, t=None):
    """A layer is changed for all threads while the call runs, as in captum and pytorch-grad-cam."""
    clean = good(m, x, t)
    with first_layer(m).register_forward_hook(lambda m, i, o: o * 0), torch.no_grad():
        m(x.clone())
        time.sleep(0.05)  # like a slow method: other threads run the model while the hook is registered
    return clean


def switches_to_eval_for_all_threads(m, x, t=None):
    """As pytorch-grad-cam, which also affects a training step in another thread."""
    modes = [(module, module.training) for module in m.eval().modules()]
    try:
        time.sleep(0.01)
        return good(m, x, t)
    finally:
        for module, was in modes:
            module.training = was


def reads_memory_in_order(m, x, t=None):
    turned = x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] > 1
    return good(m, x, t).flip(1) if turned else good(m, x, t)


def accepts_nans(m, x, t=None):
    return good(m, x.nan_to_num() if torch.is_tensor(x) else x, t)


def sorted_by_class(m, x, t=None):
    found = good(m, x, t)
    return found[sorted(range(len(x)), key=t.__getitem__)] if isinstance(t, list) else found


def swallows_errors_of_the_backward_pass(m, x, t=None):
    try:
        return good(m, x, t)
    except RuntimeError as error:
        if "backward" in str(error):
            return x * 0
        raise


def replaces_errors(m, x, t=None):
    try:
        return good(m, x, t)
    except BaseException as error:
        raise RuntimeError("failed") from error


def with_seed(change: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    def seeded(m, x, t=None, *, seed=0):
        return change(good(m, x, t), seed)

    return seeded


def drawn(g: Tensor, seed: int) -> Tensor:
    return torch.randn(g.shape, generator=torch.Generator().manual_seed(seed))


BROKEN: list[tuple[str, str, Callable[..., Tensor]]] = [
    # The check that must fail, what is wrong, and the explainer
    ("shape", "another shape", lambda m, x, t=None: good(m, x, t)[..., None]),
    ("shape", "only the first image", lambda m, x, t=None: good(m, x, t)[:1]),
    ("shape", "height and width swapped", lambda m, x, t=None: good(m, x, t)[:, 0, ::2, ::2].mT),
    ("finite_and_detached", "a NaN", lambda m, x, t=None: torch.where(x == x.max(), torch.nan, good(m, x, t))),
    ("finite_and_detached", "attached", lambda m, x, t=None: good(m, x, t).requires_grad_()),
    ("raw_units", "scaled", lambda m, x, t=None: scaled(good(m, x, t))),
    ("constant_in_scores", "divided by a score",
     lambda m, x, t=None: good(m, x, t) / m(x).detach()[:, :1, None, None]),
    ("nan_in_weights", "NaN replaced", lambda m, x, t=None: good(m, x, t).nan_to_num()),
    ("repeatable", "its own buffer", lambda m, x, t=None: BOX.setdefault("result", good(m, x, t))),
    ("repeatable", "noise without a seed", lambda m, x, t=None: good(m, x, t) * (1 + 0.1 * random.random())),
    ("batch_independence", "scaled by the batch", lambda m, x, t=None: good(m, x, t) / len(x)),
    ("batch_independence", "in the order of the classes", sorted_by_class),
    ("equivalent_targets", "the first image's class for all",
     lambda m, x, t=None: good(m, x, int(m(x)[0].argmax()) if t is None else t)),
    ("no_side_effects", "the global generator", lambda m, x, t=None: use(torch.rand(1)) or good(m, x, t)),
    ("no_side_effects_after_error", "weights stay frozen",
     around(lambda m: m.requires_grad_(False), lambda m, _: m.requires_grad_())),
    ("no_side_effects", "clears gradients", lambda m, x, t=None: m.zero_grad() or good(m, x, t)),
    ("no_side_effects_after_error", "clears gradients", lambda m, x, t=None: m.zero_grad() or good(m, x, t)),
    ("no_side_effects_after_error", "swallows errors", swallows_errors),
    ("no_side_effects_after_error", "swallows errors of the backward pass", swallows_errors_of_the_backward_pass),
    ("no_side_effects_after_error", "another error", replaces_errors),
    ("no_side_effects_after_bad_target", "clears gradients", lambda m, x, t=None: m.zero_grad() or good(m, x, t)),
    ("no_side_effects_after_bad_target", "gradients stay disabled", disables_gradients_before_it_refuses),
    ("model_works_after_failure", "weights stay doubled",
     around(lambda m: scale_weights(m, 2), lambda m, _: scale_weights(m, 0.5))),
    ("no_memory_leak", "remembers its images", lambda m, x, t=None: KEPT.append(x) or good(m, x, t)),
    ("no_memory_leak", "remembers its model", lambda m, x, t=None: KEPT.append(m) or good(m, x, t)),
    ("train_mode_unchanged", "calls eval", lambda m, x, t=None: good(m.eval(), x, t)),
    ("train_mode_unchanged", "train for every part",
     around(lambda m: (m.training, m.eval())[0], lambda m, was: m.train(was))),
    ("grad_modes_and_frozen_weights", "inference tensors",
     lambda m, x, t=None: good(m, x, t) * (1 if torch.is_grad_enabled() else torch.ones(1))),
    ("grad_modes_and_frozen_weights", "resets the gradient of the images",
     lambda m, x, t=None: setattr(x, "grad", None) or good(m, x, t)),
    ("grad_modes_and_frozen_weights", "needs weights with gradients", needs_a_weight_with_gradient),
    ("float64", "always float32", lambda m, x, t=None: good(m, x, t).float()),
    ("float64", "another map", lambda m, x, t=None: good(m, x, t) * (2 if x.dtype == torch.float64 else 1)),
    ("half_precision", "keeps half precision", lambda m, x, t=None: good(m, x, t).to(x.dtype)),
    ("channels_last", "reads memory in order", reads_memory_in_order),
    ("channels_last", "needs dense images", lambda m, x, t=None: use(x.view(len(x), -1)) or good(m, x, t)),
    ("any_number_of_channels", "three channels only", lambda m, x, t=None: good(m, x, t) + torch.zeros(3, 1, 1)),
    ("wrapped_and_traced", "wrong on traced models",
     lambda m, x, t=None: good(m, x, t) * (2 if isinstance(m, torch.jit.ScriptModule) else 1)),
    ("seed", "no effect", with_seed(lambda g, seed: g)),
    ("seed", "also the global generator", with_seed(lambda g, seed: g * (1 + seed + 1e-5 * torch.rand(1)))),
    ("seed", "one draw for the whole batch", with_seed(lambda g, seed: g + drawn(g, seed))),
    ("batch_size", "depends on it", lambda m, x, t=None, *, batch_size=4: good(m, x, t) * (1 + batch_size)),
    ("progress_and_stop", "never reports", lambda m, x, t=None, *, progress=None: good(m, x, t)),
    ("concurrent_calls", "a shared box", shares_a_box),
    ("other_threads_unaffected", "edits a layer for all threads", edits_what_all_threads_see),
    ("training_in_other_thread", "eval for all threads", switches_to_eval_for_all_threads),
    ("invalid_images_rejected", "accepts NaN", accepts_nans),
    ("invalid_images_rejected", "accepts an empty batch",
     lambda m, x, t=None: x * 0 if torch.is_tensor(x) and not len(x) else good(m, x, t)),
    ("invalid_targets_rejected", "counts from the end", lambda m, x, t=None: good(m, x, 4 if t == -1 else t)),
    ("invalid_targets_rejected", "sums over images", lambda m, x, t=None: good(m, x, 0 if callable(t) else t)),
    ("layers", "ignores the name", lambda m, x, t=None, *, layer=None: good(m, x, t)),
]  # fmt: skip


def test_a_correct_explainer_passes_every_check_and_the_report_reads_as_a_table():
    report = check_explainer(good)
    assert report, repr(report)
    assert [check.name for check in report.checks] == list(CHECKS)
    skipped = [check.name for check in report.checks if check.passed is None]
    assert skipped == ["seed", "batch_size", "progress_and_stop", "layers"]
    lines = repr(report).splitlines()
    assert lines[0].startswith(f"good: {len(CHECKS) - 4} passed, 0 failed, 4 skipped in ")
    assert len(lines) == 1 + len(CHECKS) and all(line[:4] in ("ok  ", "skip") for line in lines[1:])
    assert report["shape"].sentence == "pixels (3, 3, 20, 16) for images (3, 3, 20, 16)."
    assert all(check.sentence.endswith(".") for check in report.checks)


def outcome(name: str, function: Callable[..., Tensor]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            context = Context(function, None, None, {})
            CHECKS[name](context, context.model(), context.images())
        except Skip:
            return "skipped"
        except Exception as error:
            return f"failed: {error}"
    return "passed"


@pytest.mark.parametrize(("name", "wrong", "function"), BROKEN, ids=[f"{name}: {wrong}" for name, wrong, _ in BROKEN])
def test_a_broken_explainer_fails_its_check(name, wrong, function):
    """The check that it is registered under fails; it passes for the correct explainer (above)."""
    BOX.clear()
    assert outcome(name, function).startswith("failed"), f"{name} did not see: {wrong}"
    KEPT.clear()
    torch.set_grad_enabled(True)


def test_the_kind_of_a_result_follows_from_its_shape():
    kinds = {"pixels": lambda g: g, "heat": lambda g: g.sum(1), "grid": lambda g: g[:, 0, ::2, ::2],
             "channels": lambda g: g.sum((2, 3)), "features": lambda g: g[..., ::2, ::2]}  # fmt: skip
    for kind, change in kinds.items():
        context = Context(lambda m, x, t=None, change=change: change(good(m, x, t)), None, None, {})
        assert CHECKS["shape"](context, context.model(), context.images())[1].startswith(f"{kind} ")


def test_every_check_has_a_broken_explainer():
    assert {name for name, _, _ in BROKEN} == set(CHECKS)


def test_the_error_of_an_explainer_is_named():
    def hopeless(model, images, target=None):
        raise KeyError("no such thing")

    report = check_explainer(hopeless)
    assert not report and report.failures == (report.checks[0],)
    assert "KeyError" in report.checks[0].sentence and "no such thing" in report.checks[0].sentence


def test_options_reach_every_call_and_the_callers_model_is_copied():
    seen: list[int] = []
    sizes: set[tuple[int, ...]] = set()

    def counting(model, images, target=None, *, steps=1):
        seen.append(steps)
        assert model is not mine
        sizes.add(tuple(torch.as_tensor(images).shape))
        return good(model, images, target)

    mine = tiny(channels=1)
    before = snapshot(mine)
    report = check_explainer(functools.partial(counting), model=mine, steps=7)
    assert report and report.name.startswith("functools.partial"), repr(report)
    assert set(seen) == {7} and (3, 1, 64, 48) in sizes and report["any_number_of_channels"].passed is None
    assert not changes(before, snapshot(mine))


# What it measures with


CHANGES: list[tuple[str, Callable[..., object]]] = [
    ("hooks", lambda m, x: m.body.register_forward_pre_hook(lambda *_: None)),
    ("hooks", lambda m, x: m.body.register_forward_hook(lambda *_: None)),
    ("hooks", lambda m, x: m.register_full_backward_hook(lambda *_: None)),
    ("hooks on parameters", lambda m, x: m.head.bias.register_hook(lambda g: g)),
    ("module attributes", lambda m, x: setattr(m.body, "activations", torch.zeros(1))),
    ("train or eval mode", lambda m, x: m.drop.train()),
    ("module attributes", lambda m, x: setattr(m.relu, "inplace", False)),
    ("module attributes", lambda m, x: setattr(m, "relu", nn.ReLU(inplace=True).eval())),
    ("parameters and buffers", lambda m, x: m.norm.running_mean.add_(1e-9)),
    ("parameters and buffers", lambda m, x: m.head.bias.detach().mul_(1)),
    ("requires_grad", lambda m, x: m.head.bias.requires_grad_(False)),
    (".grad", lambda m, x: setattr(m.head.bias, "grad", torch.zeros(5))),
    ("the images", lambda m, x: x.mul_(1)),
    ("the images", lambda m, x: x.requires_grad_()),
    ("numpy's generator", lambda m, x: np.random.rand()),
    ("torch's generator", lambda m, x: torch.rand(1)),
    ("Python's generator", lambda m, x: random.random()),
]


def test_snapshot_names_what_changed():
    for name, change in CHANGES:
        model, images = tiny(), torch.ones(1, 3, 20, 16)
        before = snapshot(model, images)
        assert changes(before, snapshot(model, images)) == []
        change(model, images)
        assert changes(before, snapshot(model, images)) == [name]
