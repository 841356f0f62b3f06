"""Gradient hooks for training: closed forms, the order of blocks, norms over all parameters, wrong uses.

`test_blocks.py` has what is true of all blocks: no side effects, threads, memory.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatch
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from explainers import (
    BadOption,
    ExplainerError,
    add_gradient_noise,
    clip_gradients,
    edit_gradients,
    edit_inputs,
    edit_outputs,
    freeze,
    input_gradients,
    record_gradients,
    replace_gradient,
    scale_gradients,
)
from tests.support.nets import plain, random_images, residual
from tests.support.traces import nothing_left, tensors_alive


def leaf(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def is_close(actual: Tensor | None, expected: object) -> bool:
    assert actual is not None
    return torch.allclose(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=1e-12, atol=1e-12)


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batch(seed: int = 1, size: float = 3.0) -> Tensor:
    return size * torch.randn(6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss(scores: Tensor) -> Tensor:
    return scores.pow(2).sum()


def gradients(net: nn.Module, run: Callable[[nn.Module], object]) -> list[Tensor]:
    """What `run` adds to `.grad`, in order of the parameters; zeros if it is None."""
    net.zero_grad()
    run(net)
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()]


def total_norm(net: nn.Module) -> float:
    return float(torch.nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None]))


# Closed forms


def test_a_changed_gradient_accumulates_and_later_ones_arrive_unchanged():
    v = leaf(2, 2, 2)
    with replace_gradient(v, lambda g: g**2):
        v.backward(torch.tensor([1.0, 1, 2]).double())
        assert is_close(v.grad, [1, 1, 4])
        v.backward(torch.tensor([1.0, 1, 1]).double())
    assert is_close(v.grad, [2, 2, 5])
    v.backward(torch.tensor([1.0, 2, 3]).double())
    assert is_close(v.grad, [3, 4, 8])


def test_the_gradient_of_an_intermediate_tensor():
    x = nn.Parameter(torch.tensor([[1.0, 2], [3, 4]]).double())
    y, seen = x**2 + 1, []
    with replace_gradient(y, seen.append), record_gradients({"y": y, "x": x}) as log:
        (y**2).mean().backward()

    assert is_close(seen[0], [[1, 2.5], [5, 8.5]])
    assert is_close(x.grad, [[2, 10], [30, 68]])
    assert [(row.name, row.kind) for row in log.rows] == [("y", "tensor"), ("x", "parameter")]
    assert log.rows[0].statistics["mean"] == pytest.approx(17 / 4)


def test_descent_on_a_sum_of_squares():
    """The gradient is 2(X - b): each step scales the distance to b by 1 - 2/1000, and the loss by its square."""
    X, b = nn.Parameter(torch.full((100,), 100.0).double()), torch.ones(100).double()
    optimizer, losses = torch.optim.SGD([X], lr=1 / 1000), []
    with record_gradients({"X": X}) as log:
        for _ in range(200):
            optimizer.zero_grad()
            distance = ((b - X) ** 2).sum()
            distance.backward()
            optimizer.step()
            losses.append(float(distance.detach()))

    assert [row.step for row in log.rows] == list(range(200))
    expected = [2 * 99 * 0.998**k for k in range(200)]
    assert [row.statistics["mean"] for row in log.rows] == pytest.approx(expected)
    assert [row.statistics["norm"] for row in log.rows] == pytest.approx([10 * each for each in expected])
    assert all(later < sooner for sooner, later in pairwise(losses))
    assert losses[-1] / losses[0] == pytest.approx(0.998 ** (2 * 199))


def test_pre_hook_changes_the_input_forward_hook_the_output_backward_hook_sees_both_gradients():
    net, x = nn.Sequential(nn.Linear(2, 2, bias=False)).double(), torch.tensor([[1.0, 2]]).double().requires_grad_()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 2], [3, 4]]))

    with edit_inputs(net, {"0": lambda given: given + 1}), input_gradients(net, "0") as seen:
        with edit_outputs(net, {"0": lambda output: output * 10}):
            out = net(x)
        out.sum().backward()

    assert is_close(out, [[80, 180]])  # W (2, 3) = (8, 18)
    assert is_close(seen.grad_output["0"], [[10, 10]])
    assert is_close(seen.grad_input["0"], [[40, 60]]) and is_close(x.grad, [[40, 60]])


def test_a_hook_on_an_intermediate_tensor_does_not_need_to_clone():
    """`grad * 3` makes a new tensor: the incoming gradient is unchanged for its other users."""
    x = leaf(1, 2)
    y = x * 1
    came = []

    def triple(gradient: Tensor) -> Tensor:
        came.append((gradient, gradient.clone()))
        return gradient * 3

    with replace_gradient(y, triple):
        y.sum().backward()

    assert torch.equal(*came[0])
    assert is_close(x.grad, [3, 3])


# One edit at a time


def test_clip_by_value():
    v = leaf(0, 0, 0)
    with clip_gradients([v], value=2):
        v.backward(torch.tensor([-5.0, 1, 3]).double())
    assert is_close(v.grad, [-2, 1, 2])


@pytest.mark.parametrize("norm", [0.5, 1e6])
def test_clip_by_norm_is_clip_grad_norm(norm):
    net, x = small(), batch()
    loss(net(x)).backward()
    total = torch.nn.utils.clip_grad_norm_(net.parameters(), norm)
    expected = [p.grad.clone() for p in net.parameters()]
    with clip_gradients(net, norm=norm):
        found = gradients(net, lambda net: loss(net(x)).backward())
    for gradient, want in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, want, rtol=1e-5, atol=0)
    assert (total > norm) == (norm == 0.5), "one norm clips, one does not"


def one_pass(net: nn.Module) -> None:
    loss(net(batch())).backward()


def two_passes(net: nn.Module) -> None:
    one_pass(net)
    loss(net(batch(2, size=9.0))).backward()


def passes_over_a_kept_graph(net: nn.Module) -> None:
    total = loss(net(batch()))
    total.backward(retain_graph=True)
    total.backward()


def first_layer(net: nn.Module) -> None:
    """Waiting for the gradients of all parameters would never clip."""
    loss(net[0](batch(2))).backward()


def all_layers_then_the_first(net: nn.Module) -> None:
    """The earlier gradient of the other layer counts and is clipped again."""
    one_pass(net)
    first_layer(net)


def reentrant_checkpoint(net: nn.Module) -> None:
    """Runs a backward pass inside the backward pass."""
    loss(net[2](checkpoint(net[:2], batch().requires_grad_(), use_reentrant=True))).backward()


def test_a_norm_is_that_of_the_gradients_accumulated_so_far():
    """Clipping each pass separately gives a larger norm."""
    net = small()
    runs = one_pass, first_layer, two_passes, passes_over_a_kept_graph, all_layers_then_the_first, reentrant_checkpoint
    whole = {run: gradients(net, run) for run in runs}
    with clip_gradients(net, norm=0.5):
        for to_none in (True, False):
            for run in runs:
                net.zero_grad(set_to_none=to_none)
                run(net)
                length = float(torch.nn.utils.get_total_norm(whole[run]))
                for p, want in zip(net.parameters(), whole[run], strict=True):
                    if p.grad is not None or want.any():
                        torch.testing.assert_close(
                            p.grad, want * 0.5 / length, rtol=1e-9, atol=1e-15, msg=f"{run.__name__}, {to_none}"
                        )
                assert total_norm(net) == pytest.approx(0.5)


def test_norm_after_a_pass_that_failed():
    net = small()
    whole = gradients(net, one_pass)
    length = float(torch.nn.utils.get_total_norm(whole))

    def fail(gradient: Tensor) -> None:
        raise RuntimeError("halfway")

    with clip_gradients(net, norm=0.5):
        with replace_gradient(net[0].weight, fail), pytest.raises(RuntimeError, match="halfway"):
            one_pass(net)
        found = gradients(net, one_pass)
    torch.testing.assert_close(found[0], whole[0] * 0.5 / length, rtol=1e-9, atol=1e-15)


def test_norm_does_not_affect_autograd_grad():
    """It does not write `.grad`: neither its result nor existing gradients change."""
    net, x = small(), batch()
    plain_gradients = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    with clip_gradients(net, norm=0.5):
        before = gradients(net, one_pass)
        found = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, plain_gradients, strict=True))
    assert all(torch.equal(p.grad, b) for p, b in zip(net.parameters(), before, strict=True))


def test_scale_is_a_learning_rate_for_each_parameter():
    """SGD with scaled gradients equals SGD with one learning rate per layer."""
    one, two, x = small(), small(), batch()
    optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
    groups = torch.optim.SGD(
        [{"params": two[0].parameters(), "lr": 0.001}, {"params": two[2].parameters(), "lr": 0.02}]
    )
    with scale_gradients(one, {"0.*": 0.1, "2.*": 4, "?.*": 1, "2.weight": 0.5, "2.bias": 0.5}):
        for _ in range(3):
            for net, steps in ((one, optimizer), (two, groups)):
                net.zero_grad()
                net(x).pow(2).sum().backward()
                steps.step()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (lambda net: "layer1", "layer1.*"),
        (lambda net: net.layer1, "layer1.*"),
        (lambda net: "layer1.conv1", "layer1.conv1.*"),
        (lambda net: [net.fc, "conv1"], ["fc.*", "conv1.*"]),
        (lambda net: "layer?", "layer*"),
        (lambda net: net, "*"),
    ],
)
def test_a_layer_stands_for_all_its_parameters(chosen, expected):
    """The same as a shell pattern of their names, in `freeze` and `scale_gradients`."""
    net, x = residual(), random_images()
    patterns = [expected] if isinstance(expected, str) else expected
    names = {name for name, _ in net.named_parameters() for each in patterns if fnmatch(name, each)}
    given = chosen(net)
    keys = given if isinstance(given, list) else [given]
    for block in (freeze(net, given), scale_gradients(net, dict.fromkeys(keys, 0.0))):
        net.zero_grad()
        with block:
            net(x).pow(2).sum().backward()
        assert names == {name for name, each in net.named_parameters() if not each.grad.any()}


def test_noise_has_the_given_deviation_and_seed_and_its_own_generator():
    v, w = nn.Parameter(torch.zeros(20_000)), nn.Parameter(torch.zeros(20_000))

    def drawn(seed: int, *params: nn.Parameter) -> Tensor:
        v.grad = w.grad = None
        state = torch.get_rng_state()
        with add_gradient_noise(params, std=0.3, seed=seed):
            (v.sum() + w.sum()).backward()
        assert torch.equal(torch.get_rng_state(), state)
        return v.grad - 1

    noise = drawn(0, v, w)
    assert not torch.equal(noise, w.grad - 1)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.03) and abs(float(noise.mean())) < 0.01
    assert torch.equal(noise, drawn(0, v)), "no other parameter matters"
    assert not torch.equal(noise, drawn(1, v))


# Order, removal, threads


@contextmanager
def both(first: AbstractContextManager[None], second: AbstractContextManager[None]) -> Iterator[None]:
    with first, second:
        yield


def test_blocks_act_in_the_order_of_entry():
    v = leaf(0)
    pull = torch.tensor([10.0]).double()

    def run(*blocks):
        v.grad = None
        with blocks[0], blocks[1]:
            v.backward(pull)
        return float(v.grad)

    def double():
        return edit_gradients({v: lambda g: g * 2})

    assert run(clip_gradients([v], value=3), double()) == 6
    assert run(double(), clip_gradients([v], value=3)) == 3
    assert run(clip_gradients([v], norm=3), double()) == pytest.approx(6)
    assert run(double(), clip_gradients([v], norm=3)) == pytest.approx(3)


def test_edits_and_records_after_a_norm_see_clipped_gradients():
    """A record entered after the clip sees clipped gradients, one entered before it unclipped ones; edits likewise."""
    net = small()
    length = float(torch.nn.utils.get_total_norm(gradients(net, one_pass)))
    with record_gradients(net) as before, clip_gradients(net, norm=0.5), record_gradients(net) as between:
        with scale_gradients(net, {"*": 4}), clip_gradients(net, norm=1.5), record_gradients(net) as after:
            for _ in range(3):
                net.zero_grad()
                one_pass(net)
    for log, wanted in ((before, length), (between, 0.5), (after, 1.5)):
        for step in range(3):
            own = [row.statistics["norm"] for row in log.rows if row.step == step]
            assert len(own) == 4 and sum(each**2 for each in own) ** 0.5 == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("function", "which"),
    [
        (lambda g: g[:2], "shape (2,); it must keep shape (3,)"),
        (lambda g: g.float(), "dtype torch.float32; it must keep dtype torch.float64"),
        (lambda g: g.to("meta"), "device meta; it must keep device cpu"),
        (lambda g: 3.0, "3.0"),
    ],
)
def test_a_gradient_keeps_shape_dtype_and_device(function, which):
    identity, v = nn.Sequential(nn.Identity()), leaf(1, 2, 3)
    at_once, on_a_layer = replace_gradient(v, function), edit_gradients({(identity, "0"): function})
    for block in (at_once, both(clip_gradients([v], norm=1), replace_gradient(v, function)), on_a_layer):
        with block, pytest.raises((BadOption, TypeError), match=re.escape(which)):
            identity(v).sum().backward()
        v.grad = None
        v.sum().backward()
        assert is_close(v.grad, [1, 1, 1])
        v.grad = None


def test_a_record_after_a_norm_contains_only_new_gradients():
    """The other layer's gradient is clipped again, but is not a new gradient."""
    net = small()
    with clip_gradients(net, norm=0.5), record_gradients(net) as log:
        all_layers_then_the_first(net)
    assert [row.name for row in log.rows if row.step == 1] == ["0.weight", "0.bias"]


def test_copies_kept_for_a_norm_are_freed_at_the_end_of_its_block(frozen):
    net = small()
    with record_gradients(net) as log:
        one_pass(net)
        net.zero_grad()
        before = (len(log.rows), tensors_alive())[1]
        with clip_gradients(net, norm=0.5):
            one_pass(net)
            net.zero_grad()
            assert (len(log.rows), tensors_alive())[1] > before, "the check sees the copies"
        assert tensors_alive() == before


def test_hooks_run_in_threads_that_python_did_not_start():
    """On an accelerator, hooks run in the engine's threads, regardless of the thread that called backward."""
    import _thread

    v, done = leaf(1), threading.Event()

    def work() -> None:
        v.sum().backward()
        done.set()

    with clip_gradients([v], norm=0.5), scale_gradients(nn.ParameterDict({"v": v}), {"v": 3}):
        _thread.start_new_thread(work, ())
        assert done.wait(10)
    assert is_close(v.grad, [1.5])


def test_blocks_can_be_exited_in_any_order():
    v = leaf(0)
    first, second = clip_gradients([v], norm=1), scale_gradients(nn.ParameterDict({"v": v}), {"v": 5})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    v.backward(torch.tensor([3.0]).double())
    assert is_close(v.grad, [15])
    second.__exit__(None, None, None)


# Refusals


def test_a_pattern_that_matches_nothing_names_the_three_nearest():
    net = residual()
    for block in (
        lambda: freeze(net, "layre1.conv1.*"),
        lambda: scale_gradients(net, {"layre1.conv1.*": 2}),
        lambda: record_gradients(net, patterns="layre1.conv1.*"),
    ):
        with nothing_left(net), pytest.raises(BadOption, match=r"'layre1.conv1.\*'") as refusal, block():
            raise AssertionError("never entered")
        named = set(re.findall(r"'([^']+)'", str(refusal.value))) & dict(net.named_parameters()).keys()
        assert len(named) == 3 and any(name.startswith("layer1") for name in named)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (lambda net: clip_gradients(net), "norm=1.0"),
        (lambda net: clip_gradients(net, norm=0), "norm=0.* above 0"),
        (lambda net: clip_gradients(net, value=float("nan")), "value=nan"),
        (lambda net: clip_gradients([torch.ones(2)], norm=1), "requires grad"),
        (lambda net: clip_gradients([net.conv1.weight * 2], norm=1), "not a leaf"),
        (lambda net: scale_gradients(net, {"*": float("inf")}), "inf"),
        (lambda net: add_gradient_noise(net, std=-1), "std=-1"),
        (lambda net: replace_gradient(torch.ones(2), abs), "requires_grad_"),
        (lambda net: record_gradients(net, statistics=("nrom",)), "'norm'"),
        (lambda net: record_gradients(net, statistics="norm"), "statistics='norm'"),
        (lambda net: record_gradients(net, every=0), "every=0"),
        (lambda net: record_gradients(net, histograms=-1), "histograms=-1"),
        (lambda net: record_gradients(net, limit=0), "limit=0"),
        (lambda net: record_gradients([net.conv1.weight], activations=["conv1"]), "Pass the model"),
        (lambda net: record_gradients(net, activations=["conv9"]), "conv9"),
        (lambda net: record_gradients([]), "requires grad"),
        (lambda net: freeze(net, net.relu1), "'relu1' has no parameters"),
        (lambda net: freeze(net, nn.ReLU()), "ReLU .* not part of"),
        (lambda net: freeze(net, [3]), "3 is not a layer or a pattern"),
        (lambda net: freeze(net, 3), "pattern=3 .*layer"),
        (lambda net: freeze(net, ""), "matches ''"),
    ],
)
def test_wrong_use_is_refused_on_entry(block, words):
    net = plain()
    with nothing_left(net), pytest.raises(ExplainerError, match=words), block(net):
        raise AssertionError("never entered")


def test_params_take_every_form_that_an_optimizer_accepts():
    net = small()
    forms = (
        net,
        net.parameters(),
        list(net.named_parameters()),
        dict(net.named_parameters()),
        [{"params": net[0].parameters()}, {"params": list(net[2].parameters())}],
        [*net.parameters(), *net.parameters(), torch.ones(1)],
    )
    for form in forms:
        net.zero_grad()
        with clip_gradients(form, norm=0.5):
            one_pass(net)
        assert total_norm(net) == pytest.approx(0.5)
    with pytest.raises(TypeError, match="optimizer"), clip_gradients([3], norm=1):
        pass
