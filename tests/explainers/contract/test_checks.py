"""check_explainer on a correct explainer, which passes every check, and on broken copies, which each fail one."""

from __future__ import annotations

import copy
import functools
import random
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from explainers import check_explainer
from explainers.checks.context import Context, Fail, Skip
from explainers.checks.fixtures import Fault, changes, failing, snapshot, steps, tiny
from explainers.checks.report import CHECKS, Report
from explainers.checks.robustness import seed as seed_check


def _classes(target: object, scores: Tensor) -> Tensor | None:
    """A target as N classes, None for a callable; anything else is refused."""
    n, k = scores.shape
    if target is None:
        return scores.argmax(1)
    if callable(target):
        return None
    given = [target] * n if isinstance(target, int) else target
    if isinstance(given, Tensor):
        given = given.tolist()
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(found) != n or any(isinstance(c, bool) or not isinstance(c, int) or not 0 <= c < k for c in found):
        raise ValueError(f"target={target!r} does not name one of {k} classes for each of {n} images.")
    return torch.tensor(found)


def _gradient(model: nn.Module, images: Tensor, target: object) -> Tensor:
    """The input gradient of a copy in eval mode: running batch statistics, no dropout."""
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point() or not len(images):
        raise ValueError("images must be floats of shape [N, C, H, W].")
    if not images.isfinite().all():
        raise ValueError("images must be finite.")
    with torch.inference_mode(False), torch.enable_grad():
        if any(module.training for module in model.modules()) or next(model.parameters()).is_inference():
            model = copy.deepcopy(model).eval()
        leaf = images.detach().clone().requires_grad_()
        scores = model(leaf.clone())
        classes = _classes(target, scores)
        chosen = target(scores) if classes is None else scores.gather(1, classes[:, None])[:, 0]
        if chosen.shape != (len(images),):
            raise ValueError("target must return one score for each image.")
        (gradient,) = torch.autograd.grad(chosen.sum(), leaf)
    return gradient if gradient.dtype == torch.float64 else gradient.float()


def good(model: nn.Module, images: Tensor, target: object = None) -> Tensor:
    """Saliency without the library's passes."""
    return _gradient(model, images, target)


def breaks(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a broken explainer under the check that must fail."""

    def join(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        BROKEN.append((name, function))
        return function

    return join


BROKEN: list[tuple[str, Callable[..., Tensor]]] = []


@breaks("shape")
def turned(model, images, target=None):
    return _gradient(model, images, target).transpose(2, 3).flatten(1, 3).view(len(images), -1, 2, 1, 1)


@breaks("shape")
def only_the_first_image(model, images, target=None):
    return _gradient(model, images, target)[:1]


@breaks("shape")
def swaps_height_and_width(model, images, target=None):
    return _gradient(model, images, target)[:, 0, ::2, ::2].mT


@breaks("finite_and_detached")
def with_a_nan(model, images, target=None):
    result = _gradient(model, images, target)
    result[0, 0, 0, 0] = torch.nan
    return result


@breaks("finite_and_detached")
def attached(model, images, target=None):
    return _gradient(model, images, target).requires_grad_()


@breaks("raw_units")
def scaled(model, images, target=None):
    """Row P19: each map by its own maximum."""
    g = _gradient(model, images, target)
    return g / g.abs().amax((1, 2, 3), keepdim=True)


@breaks("constant_in_scores")
def divides_by_the_score(model, images, target=None):
    """Row P37: the map changes its sign where the score does."""
    with torch.no_grad():
        scores = model(images)[:, target if isinstance(target, int) else 0]
    return _gradient(model, images, target) / scores[:, None, None, None]


@breaks("nan_in_weights")
def replaces_nans(model, images, target=None):
    """Row P24."""
    return _gradient(model, images, target).nan_to_num()


@breaks("repeatable")
def returns_its_own_buffer(model, images, target=None):
    return BOX.setdefault("result", _gradient(model, images, target))


@breaks("repeatable")
def noisy_without_seed(model, images, target=None):
    return _gradient(model, images, target) * (1 + 0.1 * random.random())


@breaks("batch_independence")
def scaled_by_the_batch(model, images, target=None):
    g = _gradient(model, images, target)
    return g / len(g)


@breaks("equivalent_targets")
def always_the_first_images_class(model, images, target=None):
    if target is None:
        with torch.no_grad():
            target = int(model(images)[0].argmax())
    return _gradient(model, images, target)


@breaks("no_side_effects")
def leaves_a_hook(model, images, target=None):
    next(model.children()).register_forward_hook(lambda *_: None)
    return _gradient(model, images, target)


@breaks("no_side_effects")
def writes_grad(model, images, target=None):
    """Row P02: the full backward pass into every parameter."""
    result = _gradient(model, images, target)
    with torch.enable_grad():
        model(images.clone()).sum().backward()
    return result


@breaks("no_side_effects")
def adds_an_attribute(model, images, target=None):
    """Rows P09 and P10."""
    next(model.children()).activations = images.clone()
    return _gradient(model, images, target)


@breaks("no_side_effects")
def draws_from_the_global_generator(model, images, target=None):
    torch.rand(1)
    return _gradient(model, images, target)


@breaks("no_side_effects")
def changes_the_images(model, images, target=None):
    result = _gradient(model, images, target)
    images.requires_grad_()
    return result


@breaks("no_side_effects_after_error")
def restores_only_after_success(model, images, target=None):
    """Row P12: no `finally`."""
    handle = next(model.children()).register_forward_hook(lambda *_: None)
    result = _gradient(model, images, target)
    handle.remove()
    return result


@breaks("no_side_effects_after_error")
def switches_off_gradients_until_the_backward_pass_is_done(model, images, target=None):
    model.requires_grad_(False)
    result = _gradient(model, images, target)
    for parameter in list(model.parameters())[:2] + list(model.parameters())[3:]:
        parameter.requires_grad_()
    return result


@breaks("no_side_effects_after_error")
def swallows_errors(model, images, target=None):
    """Row P07."""
    try:
        return _gradient(model, images, target)
    except RuntimeError:
        return images * 0


@breaks("no_side_effects_after_bad_target")
def switches_off_gradients_before_it_refuses(model, images, target=None):
    was = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    if isinstance(target, int) and target > 1000:
        raise ValueError(f"target={target} is out of range.")
    torch.set_grad_enabled(was)
    return _gradient(model, images, target)


@breaks("model_works_after_failure")
def leaves_weights_changed(model, images, target=None):
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    result = _gradient(model, images, target)
    with torch.no_grad():
        next(model.parameters()).div_(2)
    return result


@breaks("no_memory_leak")
def remembers_its_images(model, images, target=None):
    KEPT.append(images)
    return _gradient(model, images, target)


@breaks("no_memory_leak")
def remembers_its_model(model, images, target=None):
    KEPT.append(model)
    return _gradient(model, images, target)


KEPT: list[Tensor | nn.Module] = []


@breaks("train_mode_unchanged")
def calls_eval(model, images, target=None):
    """Row P01."""
    return _gradient(model.eval(), images, target)


@breaks("train_mode_unchanged")
def trains_every_part_afterwards(model, images, target=None):
    was = model.training
    result = _gradient(model, images, target)
    model.train(was)
    return result


@breaks("grad_modes_and_frozen_weights")
def computes_in_inference_mode(model, images, target=None):
    """Row P70."""
    return _gradient(model, images * 1, target) * (1 if torch.is_grad_enabled() else torch.ones(1))


@breaks("grad_modes_and_frozen_weights")
def writes_the_gradient_of_the_images(model, images, target=None):
    """Row P08."""
    images.grad = None
    return _gradient(model, images, target)


@breaks("grad_modes_and_frozen_weights")
def needs_a_weight_with_gradient(model, images, target=None):
    """Row P71."""
    if not any(p.requires_grad for p in model.parameters()):
        raise RuntimeError("element 0 of tensors does not require grad")
    return _gradient(model, images, target)


@breaks("float64")
def always_float32(model, images, target=None):
    """Row P73."""
    return _gradient(model, images, target).float()


@breaks("half_precision")
def keeps_half_precision(model, images, target=None):
    """Row P72."""
    return _gradient(model, images, target).to(images.dtype)


@breaks("channels_last")
def reads_memory_in_order(model, images, target=None):
    result = _gradient(model, images, target)
    if images.is_contiguous(memory_format=torch.channels_last) and images.shape[1] > 1:
        result = result.flip(1)
    return result


@breaks("channels_last")
def needs_dense_images(model, images, target=None):
    """Row P104."""
    images.view(len(images), -1)
    return _gradient(model, images, target)


@breaks("any_number_of_channels")
def three_channels_only(model, images, target=None):
    if images.shape[1] != 3:
        raise RuntimeError("expected three channels")
    return _gradient(model, images, target)


@breaks("wrapped_and_traced")
def wrong_on_traced_models(model, images, target=None):
    """Rows P76 to P78: silently the plain gradient where another method was requested."""
    result = _gradient(model, images, target)
    return result * 2 if isinstance(model, torch.jit.ScriptModule) else result


@breaks("seed")
def seed_without_effect(model, images, target=None, *, seed=0):
    return _gradient(model, images, target)


@breaks("seed")
def seed_next_to_the_global_generator(model, images, target=None, *, seed=0):
    """Row P99: one seed does not suffice."""
    return _gradient(model, images, target) * (1 + seed + torch.rand(1))


@breaks("seed")
def draws_for_the_whole_batch(model, images, target=None, *, seed=0):
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return _gradient(model, images, target) + noise


@breaks("batch_size")
def depends_on_the_chunk(model, images, target=None, *, batch_size=4):
    """Row P97."""
    return _gradient(model, images, target) * (1 + 0.01 * batch_size)


@breaks("progress_and_stop")
def never_reports_progress(model, images, target=None, *, progress=None):
    return _gradient(model, images, target)


BOX: dict[str, Tensor] = {}


@breaks("concurrent_calls")
def shares_a_box(model, images, target=None):
    """Row P14 and P88: state outside the call."""
    BOX["images"] = images.detach().clone()
    with torch.no_grad():
        model(images)
    return _gradient(model, BOX["images"], target)


@breaks("other_threads_unaffected")
def edits_what_all_threads_see(model, images, target=None):
    """Row P94: the layer is changed for all threads while the call runs."""
    clean = _gradient(model, images, target)
    handle = next(model.children()).register_forward_hook(lambda m, i, o: o * 0)
    try:
        with torch.no_grad():
            model(images.clone())
        time.sleep(0.05)  # like a slow method: other threads run the model while the hook is registered
    finally:
        handle.remove()
    return clean


@breaks("training_in_other_thread")
def switches_to_eval_for_all_threads(model, images, target=None):
    """Row P96."""
    modes = [(module, module.training) for module in model.eval().modules()]
    try:
        time.sleep(0.01)
        return _gradient(model, images, target)
    finally:
        for module, was in modes:
            module.training = was


@breaks("invalid_images_rejected")
def accepts_an_empty_batch(model, images, target=None):
    return images * 0 if isinstance(images, Tensor) and not len(images) else _gradient(model, images, target)


@breaks("invalid_images_rejected")
def accepts_nans(model, images, target=None):
    return _gradient(model, images.nan_to_num() if images.is_floating_point() else images, target)


@breaks("invalid_targets_rejected")
def counts_from_the_end(model, images, target=None):
    """Row P27."""
    return _gradient(model, images, 4 if isinstance(target, int) and target == -1 else target)


@breaks("invalid_targets_rejected")
def sums_over_images(model, images, target=None):
    return _gradient(model, images, 0 if callable(target) else target)


@breaks("layers")
def ignores_the_layers_name(model, images, target=None, *, layer=None):
    return _gradient(model, images, target)


@pytest.fixture(scope="module")
def report() -> Report:
    return check_explainer(good)


def test_a_correct_explainer_passes_every_check(report):
    assert report, repr(report)
    assert [check.name for check in report.checks] == list(CHECKS)
    skipped = [check.name for check in report.checks if check.passed is None]
    assert skipped == ["seed", "batch_size", "progress_and_stop", "layers"]


def test_the_report_reads_as_a_table(report):
    lines = repr(report).splitlines()

    assert lines[0].startswith(f"good: {len(CHECKS) - 4} passed, 0 failed, 4 skipped in ")
    assert len(lines) == 1 + len(CHECKS) and all(line[:4] in ("ok  ", "skip") for line in lines[1:])
    assert report["shape"].sentence == "pixels (3, 3, 20, 16) for images (3, 3, 20, 16)."
    assert all(check.sentence.endswith(".") for check in report.checks)


def outcome(name: str, function: Callable[..., Tensor]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            CHECKS[name](Context(function, None, None, {}))
        except Skip:
            return "skipped"
        except Exception as error:
            return f"failed: {error}"
    return "passed"


@pytest.mark.parametrize(("name", "function"), BROKEN, ids=[f.__name__ for _, f in BROKEN])
def test_a_broken_explainer_fails_its_check(name, function):
    """The check that it is registered under fails; it passes for the correct explainer (above)."""
    assert outcome(name, function).startswith("failed"), f"{name} did not see {function.__name__}"
    KEPT.clear()
    torch.set_grad_enabled(True)


def test_each_accepted_target_is_named_with_what_happened():
    def accepts_booleans(model, images, target=None):
        if target == [0, 1]:
            raise KeyError("no such class")
        return _gradient(model, images, 1 if target is True else target)

    found = outcome("invalid_targets_rejected", accepts_booleans)
    assert found.endswith("True (accepted), 2 for 3 images (KeyError).")


def test_every_check_has_a_broken_explainer():
    assert {name for name, _ in BROKEN} == set(CHECKS)


def test_an_explainer_that_raises_is_reported_with_its_error():
    def hopeless(model, images, target=None):
        raise KeyError("no such thing")

    report = check_explainer(hopeless)

    assert not report and report.failures == (report.checks[0],)
    assert "KeyError" in report.checks[0].sentence and "no such thing" in report.checks[0].sentence


def test_options_reach_every_call_and_the_callers_model_is_copied():
    """Options reach every call; the given model is copied, so its state cannot change."""
    seen: list[int] = []
    sizes: set[tuple[int, ...]] = set()

    def counting(model, images, target=None, *, steps=1):
        seen.append(steps)
        assert model is not mine
        sizes.add(tuple(torch.as_tensor(images).shape))
        return _gradient(model, images, target)

    mine = tiny(channels=1)
    before = snapshot(mine)
    report = check_explainer(counting, model=mine, steps=7)

    assert report, repr(report)
    assert set(seen) == {7} and (3, 1, 64, 48) in sizes and report["any_number_of_channels"].passed is None
    assert not changes(before, snapshot(mine))


def test_partials_are_accepted():
    assert check_explainer(functools.partial(good)).name.startswith("functools.partial")


def test_seed_check_measures_how_far_seeds_differ():
    """By hand: a map times 1 + seed, with seeds 3 and 4, differs by 1/4 of the first."""

    def seeded(model, images, target=None, *, seed=0):
        return _gradient(model, images, target) * (1 + seed)

    assert seed_check(Context(seeded, None, None, {}))[0] == pytest.approx(0.25, rel=1e-5)


# What it measures with


def test_tiny_is_deterministic_and_leaves_the_global_generator():
    state = torch.get_rng_state()

    first, second = tiny(), tiny()

    assert torch.equal(torch.get_rng_state(), state)
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    classes = first(Context(good, None, None, {}).images()).argmax(1).tolist()
    assert len(set(classes)) > 1, "images of only one class would hide mixed-up targets"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hooks", lambda m, x: m.body.register_forward_pre_hook(lambda *_: None)),
        ("hooks", lambda m, x: m.register_full_backward_hook(lambda *_: None)),
        ("train or eval mode", lambda m, x: m.drop.train()),
        ("module attributes", lambda m, x: setattr(m.relu, "inplace", False)),
        ("module attributes", lambda m, x: setattr(m, "relu", nn.ReLU(inplace=True).eval())),
        ("parameters and buffers", lambda m, x: m.norm.running_mean.add_(1)),
        ("requires_grad", lambda m, x: m.head.bias.requires_grad_(False)),
        (".grad", lambda m, x: setattr(m.head.bias, "grad", torch.zeros(5))),
        ("the images", lambda m, x: x.mul_(1)),
        ("torch's generator", lambda m, x: torch.rand(1)),
        ("Python's generator", lambda m, x: random.random()),
    ],
)
def test_snapshot_names_what_changed(name, change):
    model, images = tiny(), torch.ones(1, 3, 20, 16)
    before = snapshot(model, images)
    assert changes(before, snapshot(model, images)) == []

    change(model, images)

    assert changes(before, snapshot(model, images)) == [name]


def test_steps_and_failing():
    """The reused ReLU is listed once; its second call, number 1, is the first that fails."""
    model, images = tiny(), torch.ones(2, 3, 20, 16)
    assert steps(model, images)[:5] == ["stem", "norm", "relu", "pause", "pool"] and steps(model, images)[-1] == "head"

    with failing(model, "relu", Fault("x"), after=1) as state, pytest.raises(Fault):
        model(images)

    assert state.raised and state.calls == 2
    model(images)


def test_fail_carries_its_measurement():
    assert Fail("sentence", 3.0).figure == 3 and str(Fail("sentence")) == "sentence"
