"""Gradient hooks for training: closed forms, the order of blocks, norms over all parameters, wrong uses.

`test_blocks.py` has what is true of all blocks: no side effects, threads, memory.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from fnmatch import fnmatch
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import explainers
from explainers import BadOption, clip_gradients, freeze, record_gradients, scale_gradients
from tests.support.nets import plain, random_images, residual
from tests.support.traces import nothing_left
from tests.support.training import (
    assert_all_close,
    batch,
    gradients,
    gradients_of,
    loss,
    one_pass,
    total_norm,
    two_layers,
)
from tests.support.training import two_layers as small


def leaf(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def is_close(actual: Tensor | None, expected: object) -> bool:
    assert actual is not None
    return torch.allclose(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=1e-12, atol=1e-12)


# Closed forms


def test_a_changed_gradient_accumulates_and_later_ones_arrive_unchanged():
    v = leaf(2, 2, 2)
    with explainers.replace_gradient(v, lambda g: g**2):
        v.backward(torch.tensor([1.0, 1, 2]).double())
        assert is_close(v.grad, [1, 1, 4])
        v.backward(torch.tensor([1.0, 1, 1]).double())
    v.backward(torch.tensor([1.0, 2, 3]).double())
    assert is_close(v.grad, [3, 4, 8])


def test_the_gradient_of_an_intermediate_tensor():
    x = nn.Parameter(torch.tensor([[1.0, 2], [3, 4]]).double())
    y, seen = x**2 + 1, []
    with explainers.replace_gradient(y, seen.append), record_gradients({"y": y, "x": x}) as log:
        (y**2).mean().backward()
    assert is_close(seen[0], [[1, 2.5], [5, 8.5]])
    assert is_close(x.grad, [[2, 10], [30, 68]])
    assert [(row.name, row.kind) for row in log.rows] == [("y", "tensor"), ("x", "parameter")]
    assert log.rows[0].statistics["mean"] == pytest.approx(17 / 4)


# Norms over all parameters


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


RUNS = one_pass, first_layer, two_passes, passes_over_a_kept_graph, all_layers_then_the_first, reentrant_checkpoint


def test_a_norm_is_that_of_the_gradients_accumulated_so_far():
    """Clipping each pass separately gives a larger norm."""
    net = small()
    whole = {run: gradients_of(net, run) for run in RUNS}
    for norm, to_none in product((0.5, 1e6), (True, False)):
        with clip_gradients(net, norm=norm):
            for run in RUNS:
                net.zero_grad(set_to_none=to_none)
                run(net)
                factor = min(1, norm / total_norm(whole[run]))
                assert_all_close(gradients(net), [each * factor for each in whole[run]], run.__name__, rtol=1e-9)
                assert factor == 1 or norm < 1e6


def test_norm_after_a_pass_that_failed():
    net = small()
    whole = gradients_of(net)

    def fail(gradient: Tensor) -> None:
        raise RuntimeError("halfway")

    with clip_gradients(net, norm=0.5):
        with explainers.replace_gradient(net[0].weight, fail), pytest.raises(RuntimeError, match="halfway"):
            one_pass(net)
        assert_all_close(gradients_of(net)[:1], [whole[0] * 0.5 / total_norm(whole)], rtol=1e-9)


def test_norm_does_not_affect_autograd_grad():
    """It does not write `.grad`: neither its result nor existing gradients change."""
    net = small()
    expected = torch.autograd.grad(net(batch()).sum(), list(net.parameters()))
    with clip_gradients(net, norm=0.5):
        before = gradients_of(net)
        found = torch.autograd.grad(net(batch()).sum(), list(net.parameters()))
    assert all(map(torch.equal, found, expected)) and all(map(torch.equal, gradients(net), before))


def test_edits_and_records_after_a_norm_see_clipped_gradients():
    """A record entered after the clip sees clipped gradients, one entered before it unclipped ones; edits likewise."""
    net = small()
    length = total_norm(gradients_of(net))
    with record_gradients(net) as before, clip_gradients(net, norm=0.5), record_gradients(net) as between:
        with scale_gradients(net, {"*": 4}), clip_gradients(net, norm=1.5), record_gradients(net) as after:
            for _ in range(3):
                gradients_of(net)
    for log, wanted in ((before, length), (between, 0.5), (after, 1.5)):
        for step in range(3):
            own = [row.statistics["norm"] for row in log.rows if row.step == step]
            assert len(own) == 4 and sum(each**2 for each in own) ** 0.5 == pytest.approx(wanted)
    with clip_gradients(net, norm=0.5), record_gradients(net) as log:
        all_layers_then_the_first(net)
    new = [row.name for row in log.rows if row.step == 1]
    assert new == ["0.weight", "0.bias"], "the other layer is clipped again, but it has no new gradient"


# Factors and noise


def test_scale_multiplies_by_the_factors_of_all_patterns():
    net = small()
    first, others = gradients_of(net)[:2], gradients_of(net)[2:]
    with scale_gradients(net, {"0.*": 0.1, "2.*": 4, "?.*": 1, "2.weight": 0.5, "2.bias": 0.5}):
        assert_all_close(gradients_of(net), [each * 0.1 for each in first] + [each * 2 for each in others], rtol=1e-12)


def test_a_layer_stands_for_all_its_parameters():
    """The same as a shell pattern of their names, in `freeze` and `scale_gradients`."""
    net, x = residual(), random_images()
    for given, patterns in (
        (["layer1"], ["layer1.*"]),
        ([net.layer1], ["layer1.*"]),
        (["layer1.conv1"], ["layer1.conv1.*"]),
        ([net.fc, "conv1"], ["fc.*", "conv1.*"]),
        (["layer?"], ["layer*"]),
        ([net], ["*"]),
    ):
        names = {name for name, _ in net.named_parameters() for each in patterns if fnmatch(name, each)}
        one = given[0] if len(given) == 1 else given
        for block in (freeze(net, one), scale_gradients(net, dict.fromkeys(given, 0.0))):
            with block:
                found = gradients_of(net, lambda net: loss(net(x)).backward())
            zero = {name for (name, _), each in zip(net.named_parameters(), found, strict=True) if not each.any()}
            assert zero == names, patterns


def test_noise_has_the_given_deviation_and_seed_and_its_own_generator():
    v, w = nn.Parameter(torch.zeros(20_000)), nn.Parameter(torch.zeros(20_000))

    def drawn(seed: int, *params: nn.Parameter) -> Tensor:
        v.grad = w.grad = None
        state = torch.get_rng_state()
        with explainers.add_gradient_noise(params, std=0.3, seed=seed):
            (v.sum() + w.sum()).backward()
        assert torch.equal(torch.get_rng_state(), state)
        return v.grad - 1

    noise = drawn(0, v, w)
    assert not torch.equal(noise, w.grad - 1)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.03) and abs(float(noise.mean())) < 0.01
    assert torch.equal(noise, drawn(0, v)), "no other parameter matters"
    assert not torch.equal(noise, drawn(1, v))


# Threads and exits


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
    edit, clip = explainers.replace_gradient(v, function), clip_gradients([v], norm=1)
    for blocks in (
        [edit],
        [clip, explainers.replace_gradient(v, function)],
        [explainers.edit_gradients({(identity, "0"): function})],
    ):
        with ExitStack() as stack, pytest.raises((BadOption, TypeError), match=re.escape(which)):
            for block in blocks:
                stack.enter_context(block)
            identity(v).sum().backward()
        v.grad = None
        v.sum().backward()
        assert is_close(v.grad, [1, 1, 1])


WRONG = [
    (lambda net: clip_gradients(net), "norm=1.0"),
    (lambda net: clip_gradients(net, norm=0), "norm=0.* above 0"),
    (lambda net: clip_gradients(net, value=float("nan")), "value=nan"),
    (lambda net: clip_gradients([torch.ones(2)], norm=1), "requires grad"),
    (lambda net: clip_gradients([net.conv1.weight * 2], norm=1), "not a leaf"),
    (lambda net: clip_gradients([3], norm=1), "optimizer"),
    (lambda net: scale_gradients(net, {"*": float("inf")}), "inf"),
    (lambda net: explainers.add_gradient_noise(net, std=-1), "std=-1"),
    *((lambda net, v=v: explainers.add_gradient_noise(net, std=1, seed=v), "seed=") for v in (None, 1.5, "a", -1)),
    (lambda net: explainers.replace_gradient(torch.ones(2), abs), "requires_grad_"),
    *((lambda net, v=v: explainers.replace_gradient(v, abs), "tensor is .* Give a tensor") for v in (None, [3])),
    (lambda net: explainers.edit_gradients({"conv1": abs}), r"The key is a str. Give a tensor, or \(model, layer\)"),
    *((lambda net, v=v: record_gradients(net, statistics=v), "statistics is ") for v in (None, torch.tensor(3))),
    (lambda net: record_gradients(net, patterns=3), "patterns is an int"),
    *((lambda net, v=v: record_gradients(net, activations=v), "activations is ") for v in (None, torch.ones(2))),
    (lambda net: record_gradients(net, statistics=("nrom",)), "'norm'"),
    (lambda net: record_gradients(net, statistics="norm"), "statistics='norm'"),
    (lambda net: record_gradients(net, every=0), "every=0"),
    (lambda net: record_gradients(net, histograms=-1), "histograms=-1"),
    (lambda net: record_gradients(net, limit=0), "limit=0"),
    (lambda net: record_gradients([net.conv1.weight], activations=["conv1"]), "Pass the model"),
    (lambda net: record_gradients(net, activations=["conv9"]), "conv9"),
    (lambda net: record_gradients([]), "requires grad"),
    *(
        (block, r"'cnov1.\*'.*'conv1\.\w+'.*'conv1\.\w+'")
        for block in (
            lambda net: freeze(net, "cnov1.*"),
            lambda net: scale_gradients(net, {"cnov1.*": 2}),
            lambda net: record_gradients(net, patterns="cnov1.*"),
        )
    ),
    (lambda net: freeze(net, net.relu1), "'relu1' has no parameters"),
    (lambda net: freeze(net, nn.ReLU()), "ReLU .* not part of"),
    (lambda net: freeze(net, [3]), "3 is not a layer or a pattern"),
    (lambda net: freeze(net, 3), "pattern=3 .*layer"),
    (lambda net: freeze(net, ""), "matches ''"),
]


def test_wrong_use_is_refused_on_entry():
    net = plain()
    for block, words in WRONG:
        with nothing_left(net), pytest.raises(explainers.ExplainerError, match=words), block(net):
            raise AssertionError(f"entered: {words}")


def test_params_take_every_form_that_an_optimizer_accepts():
    net = small()
    for form in (
        net,
        net.parameters(),
        list(net.named_parameters()),
        dict(net.named_parameters()),
        [{"params": net[0].parameters()}, {"params": list(net[2].parameters())}],
        [*net.parameters(), *net.parameters(), torch.ones(1)],
    ):
        with clip_gradients(form, norm=0.5):
            assert total_norm(gradients_of(net)) == pytest.approx(0.5)


# Optimizers in hooks, GradScaler, sparse gradients and complex gradients


# Optimizers in hooks


def step_through_data(p: Tensor) -> None:
    p.data.sub_(0.1 * p.grad)
    p.grad = None


def step_in_hooks(net: nn.Module, way: str) -> None:
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        if way == "step and clear":
            optimizers[p].zero_grad()

    for p in net.parameters():
        if way == "the graph's node":
            node = p.view_as(p).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, p=p: step(p))
            p.node = node  # else the node and its hook are freed
        elif way == "through .data":
            p.register_post_accumulate_grad_hook(step_through_data)
        else:
            p.register_post_accumulate_grad_hook(step)


WAYS = ["step", "step and clear", "the graph's node", "through .data"]


@pytest.mark.parametrize("way", WAYS)
def test_optimizers_in_hooks_receive_gradients_clipped_by_value_and_a_norm_is_refused(way):
    net, expected = two_layers(), two_layers()
    step_in_hooks(net, way)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    with clip_gradients(net, value=0.5), explainers.scale_gradients(net, {"0.*": 2}), record_gradients(net) as log:
        for _ in range(2):
            gradients_of(net)
            gradients_of(expected)
            torch.nn.utils.clip_grad_value_(expected.parameters(), 0.5)
            for p in expected[0].parameters():
                p.grad *= 2
            optimizer.step()
    assert_all_close(list(net.parameters()), list(expected.parameters()))
    assert max(row.statistics["max"] for row in log.rows) == 1
    refusal = pytest.raises(BadOption, match=r"optimizer in a hook.*optimizer.step\(\) after")
    with clip_gradients(net, norm=0.1), refusal:
        one_pass(net)


def test_hooks_that_only_read_gradients_are_compatible_with_a_norm():
    net, seen = two_layers(), []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm()))
    with clip_gradients(net, norm=0.1):
        assert total_norm(gradients_of(net)) == pytest.approx(0.1)
    assert len(seen) == 4


# GradScaler


def scaled(net: nn.Module, scaler: torch.amp.GradScaler) -> None:
    scaler.scale(net(batch()).pow(2).sum()).backward()


@pytest.mark.parametrize("limits", [{"norm": 0.5}, {"value": 0.3}], ids=str)
def test_limits_apply_to_the_unscaled_gradients(limits):
    expected, net = two_layers(), two_layers()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with clip_gradients(expected, **limits), record_gradients(expected, histograms=2) as wanted:
        one_pass(expected)
    with clip_gradients(net, **limits, scaler=scaler), record_gradients(net, histograms=2, scaler=scaler) as log:
        scaled(net, scaler)
    scaler.unscale_(optimizer)
    assert_all_close(gradients(net), gradients(expected))
    for row, other in zip(log.rows, wanted.rows, strict=True):
        assert dict(row.statistics) == pytest.approx(dict(other.statistics), rel=1e-4, abs=1e-6)
        assert dict(row.arrived) == pytest.approx(dict(other.arrived), rel=1e-4, abs=1e-6)


NEEDS_SCALE: dict[str, Callable[..., Any]] = {
    "norm": lambda net, **scaler: clip_gradients(net, norm=1, **scaler),
    "value": lambda net, **scaler: clip_gradients(net, value=1, **scaler),
    "noise": lambda net, **scaler: explainers.add_gradient_noise(net, std=1, **scaler),
    "record": lambda net, **scaler: record_gradients(net, **scaler),
}


@pytest.mark.parametrize("block", NEEDS_SCALE.values(), ids=NEEDS_SCALE)
def test_a_scaler_in_use_must_be_passed(block):
    net, scaler = two_layers(), type("Own", (torch.amp.GradScaler,), {})("cpu")
    refusal = pytest.raises(BadOption, match=r"scaler=scaler.*scaler=False")
    with block(net), refusal:  # the scaler has not scaled any loss before
        scaled(net, scaler)
    with refusal, block(net):
        raise AssertionError("never entered")
    with block(net, scaler=False):
        one_pass(net)
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    with block(net, scaler=disabled):
        scaled(net, disabled)
    with pytest.raises(TypeError, match="GradScaler"), block(net, scaler=2.0):
        raise AssertionError("never entered")
    del scaler
    gc.collect()
    with block(net):
        one_pass(net)


def test_small_half_precision_gradients_are_recorded_after_unscaling():
    """Divided in half precision, 2**-10 / 2**16 would become zero."""
    scaler, v = torch.amp.GradScaler("cpu", init_scale=2.0**16), nn.Parameter(torch.ones(3, dtype=torch.float16))
    with record_gradients([v], scaler=scaler) as log:
        (scaler.scale(v.float().sum() * 2.0**-26)).backward()
    assert log.rows[0].statistics["zero_fraction"] == 0
    assert log.rows[0].statistics["max"] == pytest.approx(2.0**-26)


# Sparse gradients


SPARSE: dict[str, Callable[[nn.Module], Any]] = {
    "value": lambda net: clip_gradients(net, value=0.5),
    "norm": lambda net: clip_gradients(net, norm=0.5),
    "scale": lambda net: explainers.scale_gradients(net, {"0.*": 3}),
    "freeze": lambda net: explainers.freeze(net, "0.*"),
    "replace": lambda net: explainers.replace_gradient(net[0].weight, lambda g: g * 2),
}


@pytest.mark.parametrize("block", SPARSE.values(), ids=SPARSE)
def test_sparse_gradients_are_edited_and_recorded_like_dense_ones(block):
    """The word 1 occurs twice: its two stored rows are one row of the gradient."""
    found, logs = [], []
    for sparse in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(6, 3, sparse=sparse), nn.Linear(3, 2))
        with block(net), record_gradients(net, histograms=2) as log:
            for words in ([1, 1, 4], [1, 2, 2]):
                (100 * net(torch.tensor(words)).pow(2).sum()).backward()
        assert net[0].weight.grad.is_sparse == sparse
        found.append([p.grad.to_dense() for p in net.parameters()])
        logs.append(log.rows)
    assert_all_close(*found)
    for row, other in zip(*logs, strict=True):
        assert dict(row.statistics) == pytest.approx(dict(other.statistics), rel=1e-5, abs=1e-6)
        assert row.histogram == other.histogram


def test_noise_on_sparse_gradients_is_refused():
    net = nn.Embedding(6, 3, sparse=True)
    with explainers.add_gradient_noise(net, std=1), pytest.raises(BadOption, match="sparse=False"):
        net(torch.tensor([1])).sum().backward()


# Complex gradients


def test_complex_gradients():
    v = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
    pull = torch.tensor([3 + 4j, 0, 1j, -2], dtype=torch.complex64)
    with record_gradients([v], histograms=2) as log, clip_gradients([v], norm=1):
        v.backward(pull)
    size = torch.linalg.vector_norm(pull)
    wanted = {"norm": float(size), "mean": float(pull.mean().abs()), "std": float(pull.std()), "max": 5}
    assert dict(log.rows[0].statistics) == pytest.approx(wanted | {"zero_fraction": 0.25})
    assert sum(log.rows[0].histogram) == 8
    assert torch.allclose(v.grad, pull / size)
    with pytest.raises(BadOption, match="complex"), clip_gradients([v], value=1):
        raise AssertionError("never entered")


@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_noise_has_its_deviation_after_unscaling(dtype, scale):
    v = nn.Parameter(torch.zeros(10_000, dtype=dtype))
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    with explainers.add_gradient_noise([v], std=0.1, scaler=scaler):
        scaler.scale(v.real.sum()).backward()
    found = v.grad / (scale or 1.0)
    assert float(found.real.std()) == pytest.approx(0.1, rel=0.05)
    assert float(found.real.mean()) == pytest.approx(1, rel=0.01)
    assert not dtype.is_complex or float(found.imag.std()) == pytest.approx(0.1, rel=0.05)
