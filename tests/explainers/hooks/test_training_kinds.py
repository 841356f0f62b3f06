"""Gradient hooks with optimizers in hooks, GradScaler, sparse gradients and complex gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import BadOption, clip_gradients, record_gradients
from tests.support.training import assert_all_close, batch, gradients, gradients_of, one_pass, total_norm, two_layers

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


# Complex and empty gradients


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


def test_empty_gradients_can_be_edited_and_recorded():
    net = nn.ModuleDict({"empty": nn.Embedding(0, 3), "other": nn.Linear(3, 1)})
    clip, noise = clip_gradients(net, norm=1, value=2), explainers.add_gradient_noise(net, std=0.1)
    with clip, noise, record_gradients(net, histograms=2) as log:
        (net["empty"].weight.sum() + net["other"](torch.ones(3))).sum().backward()
    row = next(row for row in log.rows if row.name == "empty.weight")
    assert set(row.statistics.values()) == {0.0} and row.size == 0
