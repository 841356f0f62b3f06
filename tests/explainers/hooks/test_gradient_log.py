"""The log of `record_gradients`: statistics, steps, size limit, export formats."""

from __future__ import annotations

import copy
import csv
import gc
import io
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from explainers import GradientLog, clip_gradients, edit_gradients, record_gradients, replace_gradient
from explainers.training.diagnosis import Row
from explainers.training.log import _in_float64
from tests.support.nets import Twice, curved, plain, random_images, settle
from tests.support.traces import nothing_left, tensors_alive

VALUES = torch.tensor([3.0, -4, 0, 0, 12]).double()


def once(values: torch.Tensor, **options: Any) -> Row:
    """The row of a leaf that gets `values` as its gradient."""
    v = nn.Parameter(torch.zeros_like(values))
    with record_gradients([v], **options) as log:
        v.backward(values)
    (row,) = log.rows
    return row


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_statistics_equal_those_in_double_precision(dtype):
    """For a single value, and for so many that they are summed in several blocks."""
    for size in (1, 999, 100_000):
        values = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64).to(dtype)
        if dtype.is_complex:
            values = values * torch.tensor(2 + 1j)
        values[1::7] = 0
        exact = values.to(torch.complex128 if dtype.is_complex else torch.float64)
        assert once(values).statistics == pytest.approx(
            {
                "norm": float(exact.norm()),
                "mean": float(exact.mean().abs() if dtype.is_complex else exact.mean()),
                "std": float(exact.std()) if size > 1 else 0,
                "max": float(exact.abs().max()),
                "zero_fraction": len(values[1::7]) / size,
            },
            rel=1e-9,
        ), size


def test_chosen_statistics_overflow_nan_and_empty_gradients():
    chosen = once(VALUES, statistics=["max", "mean"])
    assert dict(chosen.statistics) == pytest.approx({"max": 12, "mean": 2.2})
    assert once(-VALUES).statistics["max"] == 12, "the largest magnitude"
    assert (chosen.step, chosen.name, chosen.kind, chosen.size, chosen.histogram) == (0, "0", "parameter", 5, None)
    assert once(torch.full((4,), 1e30)).statistics["norm"] == pytest.approx(2e30)
    assert once(torch.full((4,), 60000.0).half()).statistics["norm"] == pytest.approx(120000, rel=1e-3)
    assert once(torch.full((1000,), 0.1)).statistics["std"] == pytest.approx(0, abs=1e-7)
    assert set(once(torch.zeros(0)).statistics.values()) == {0}
    for bad in (torch.nan, torch.inf):
        for size in (2, 100_000):
            values = torch.ones(size)
            values[size // 2] = bad
            found = once(values).statistics
            assert not any(math.isfinite(found[name]) for name in ("norm", "mean", "std", "max")), (bad, size)


def test_the_deviation_of_values_far_from_zero():
    """Alternating mean ± d, of which the last mean + d is without a pair; a constant has none."""
    for mean, d, dtype in (
        (1, 2.0**-30, torch.float64),
        (-1000, 2.0**-20, torch.float64),
        (100, 2.0**-16, torch.float32),
    ):
        values = mean + d * torch.tensor([1.0, -1]).double().repeat(50_000)[:-1]
        exact = d * ((1 - 1 / 99_999**2) * 99_999 / 99_998) ** 0.5
        assert once(values.to(dtype)).statistics["std"] == pytest.approx(exact, rel=1e-9), (mean, d)
        assert _in_float64(values.to(dtype), {"std"})[5] / 99_998**0.5 == pytest.approx(exact, rel=1e-9), (mean, d)
        complex_values = torch.complex(values, torch.zeros_like(values))
        assert once(complex_values * 1j).statistics["std"] == pytest.approx(exact, rel=1e-9), (mean, d)
    assert once(torch.full((100_000,), 0.1)).statistics["std"] < 1e-15


def test_histogram_counts_finite_values_between_its_edges():
    found = once(torch.tensor([0.0, 1, 2, 3, 4, 4, torch.nan, torch.inf]), histograms=4)
    assert found.histogram == (1, 1, 1, 3) and found.edges == (0, 1, 2, 3, 4)
    constant = once(torch.full((6,), 2.0), histograms=2)
    assert sum(constant.histogram or ()) == 6 and constant.edges == (1, 2, 3)
    assert once(torch.full((6,), torch.nan), histograms=5).histogram == (0,) * 5
    assert sum(once(torch.randn(50).bfloat16(), histograms=7).histogram or ()) == 50
    for dtype in (torch.float32, torch.float64):
        most = torch.finfo(dtype).max
        wide = once(torch.tensor([-1.0, -0.75, 0.1, 0.2, 1]).to(dtype) * most, histograms=4)
        assert wide.histogram == (2, 0, 2, 1) and wide.edges == pytest.approx((-most, -most / 2, 0, most / 2, most))


def train(net: nn.Module, passes: int = 1, log: GradientLog | None = None) -> None:
    for _ in range(passes):
        net.zero_grad()
        net(random_images(1)).sum().backward()
        if log is not None:
            log.step()


def recorded(passes: int = 1, **options: Any) -> GradientLog:
    net = plain()
    with record_gradients(net, **options) as log:
        train(net, passes)
    return log


# What is recorded in which step


def test_every_parameter_gradient_equals_autograds():
    net = plain()
    train(net)
    expected = {name: p.grad.clone() for name, p in net.named_parameters()}
    with record_gradients(net, activations=["relu1", "conv2"], histograms=3):
        train(net)
    assert all(torch.equal(p.grad, expected[name]) for name, p in net.named_parameters())
    log = recorded(passes=3)
    assert log.names == tuple(expected)
    assert [row.step for row in log.rows] == [step for step in range(3) for _ in expected]
    for row in log.rows:
        gradient = expected[row.name]
        assert row.statistics["norm"] == pytest.approx(float(gradient.norm())) and row.size == gradient.numel()


def test_a_step_ends_by_call_or_by_a_second_gradient():
    """Both give the same steps; `step()` counts a step without gradients too."""
    net = plain()
    with record_gradients(net) as called:
        train(net, 3, called)
        called.step()
        train(net, 1, called)
    assert [row.step for row in called.rows] == [step for step in (0, 1, 2, 4) for _ in called.names]
    with record_gradients(net) as accumulated:
        net(random_images()).sum().backward()
        net(random_images()).sum().backward()
    assert {row.step for row in accumulated.rows} == {0, 1}
    assert {row.step for row in recorded(passes=25, every=10).rows} == {0, 10, 20}


def test_patterns_select_parameters_by_name_and_frozen_ones_are_skipped():
    log = recorded(patterns=["conv?.weight", "head.*"])
    assert log.names == ("conv1.weight", "conv2.weight", "head.weight", "head.bias")
    assert {row.name for row in log.rows} == set(log.names)
    net, v = plain(), nn.Parameter(torch.zeros(2))
    net.conv1.requires_grad_(False)
    with record_gradients(net) as log, record_gradients([v, v]) as twice:
        train(net)
        v.sum().backward()
    assert "conv1.weight" not in log.names and len(log.rows) == 4
    assert len(twice.rows) == 1, "the same tensor twice"


def test_activation_gradients_are_recorded_under_the_name_of_the_layer_and_call():
    net, x = curved(), random_images()
    h = net[:1](x).detach().requires_grad_()
    (expected,) = torch.autograd.grad(net[1:](h).sum(), h)
    with nothing_left(net, x), record_gradients(net, activations=["conv1"]) as log:
        net(x).sum().backward()
        net.zero_grad()
    (row,) = [each for each in log.rows if each.kind == "activation"]
    assert (row.name, row.size) == ("conv1", expected.numel())
    assert row.statistics["norm"] == pytest.approx(float(expected.norm()))
    net = settle(Twice().double())
    with record_gradients(net, activations=["conv", "stem", "relu#1"]) as log:
        train(net, 2)
    found = {(row.step, row.name) for row in log.rows if row.kind == "activation"}
    assert found == {(step, name) for step in (0, 1) for name in ("conv#0", "conv#1", "stem", "relu#1")}


def test_activation_gradients_of_a_frozen_model_and_of_a_pass_after_the_block():
    net, x = plain().requires_grad_(False), random_images().requires_grad_()
    with record_gradients(net, activations=["conv2"]) as log:
        net(x).sum().backward()
        loss = net(x).sum()
    loss.backward()
    assert [(row.step, row.name) for row in log.rows] == [(0, "conv2")]


# Size, copies and formats


def test_a_long_training_run_keeps_neither_hooks_nor_many_tensors(frozen, monkeypatch):
    monkeypatch.setattr("explainers.training.log.WAITING", 12)
    net = plain()

    def kept() -> tuple[int, int]:
        train(net)
        net.zero_grad()
        return tensors_alive(), sum(type(each) is RemovableHandle for each in gc.get_objects())

    with record_gradients(net, activations=["relu1", "relu2"]) as log:
        tensors, handles = kept()
        for _ in range(10):
            now, now_handles = kept()
            assert now <= tensors + 12 + 8 and now_handles <= handles
    assert len(log.rows) == 11 * 8


def test_the_log_is_bounded_and_drops_the_oldest():
    log = recorded(passes=4, limit=10)
    for step in range(20):
        log.note(step, loss=step)
    assert len(log.rows) == 10 and log.dropped == 4 * 6 - 10
    assert log.rows[-1].step == 3 and log.rows[0].step == 2
    assert list(log.notes) == list(range(10, 20))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda log: pickle.loads(pickle.dumps(log))])
def test_a_log_can_be_copied_and_pickled_during_training(duplicate: Callable[[GradientLog], GradientLog]):
    net = plain()
    with record_gradients(net) as log:
        train(net)
        log.note(0, loss=2.0)
        other = duplicate(log)
        train(net)
        log.note(1, loss=1.0)
    assert other.rows == log.rows[:6] and other.names == log.names and list(other.notes) == [0]
    assert other.to_csv() != log.to_csv()
    other.step()
    other.note(5, loss=3.0)
    assert 5 not in log.notes


@pytest.fixture
def log() -> GradientLog:
    log = recorded(passes=2, histograms=3)
    log.note(1, loss=0.5, updates={"head.bias": 0.125})
    return log


def test_flat_rows_and_csv_contain_the_same_values(log, tmp_path):
    assert GradientLog().to_csv() == "step,name,kind,size,norm,mean,std,max,zero_fraction\n"
    rows = log.to_rows()
    text = log.to_csv(tmp_path / "log.csv")
    assert (tmp_path / "log.csv").read_text(encoding="utf-8") == text
    read = list(csv.DictReader(io.StringIO(text)))
    assert len(read) == len(rows) == 12
    for row, line in zip(rows, read, strict=True):
        assert (int(line["step"]), line["name"], line["kind"]) == (row["step"], row["name"], row["kind"])
        assert float(line["norm"]) == row["norm"], "in full precision"
        assert tuple(map(int, line["histogram"].split())) == row["histogram"]
    last = next(row for row in rows if (row["step"], row["name"]) == (1, "head.bias"))
    assert (last["loss"], last["update"]) == (0.5, 0.125)
    assert rows[0]["loss"] is None and read[0]["loss"] == ""


def test_tensorboard_gets_every_value(log, monkeypatch, tmp_path):
    stub = MagicMock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stub)
    log.to_tensorboard(tmp_path)
    stub.SummaryWriter.assert_called_with(str(tmp_path))
    writer = stub.SummaryWriter.return_value
    wanted = {(f"{row.name}/{name}", row.step): value for row in log.rows for name, value in row.statistics.items()}
    found = {(tag, step): value for (tag, value, step), _ in writer.add_scalar.call_args_list}
    assert found == wanted | {("loss", 1): 0.5, ("head.bias/update", 1): 0.125}
    bins = [named for (tag,), named in writer.add_histogram_raw.call_args_list if tag == "conv1.weight/gradient"]
    assert [each["global_step"] for each in bins] == [0, 1] and len(bins[0]["bucket_limits"]) == 3
    assert bins[0]["num"] == 6 * 3 * 9 == sum(bins[0]["bucket_counts"]) and writer.close.called


def test_without_tensorboard_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard.*to_csv"):
        GradientLog().to_tensorboard(tmp_path)


# Changes by hooks


def test_the_statistics_before_the_hooks_are_kept_if_a_hook_changed_the_gradient():
    """Oracle: by hand. The norm is 13 before hooks, 26 after a factor of 2, and 1 after a clip."""
    for block, norm in (
        (lambda v: replace_gradient(v, lambda g: g * 2), 26),
        (lambda v: clip_gradients([v], norm=1.0), 1),
        (lambda v: replace_gradient(v, lambda g: None), 13),
    ):
        v = nn.Parameter(torch.zeros_like(VALUES))
        with record_gradients([v]) as before, block(v), record_gradients([v]) as log:
            v.backward(VALUES)
            v.grad = None
            v.backward(VALUES)
        for row in log.rows:
            assert row.arrived["norm"] == pytest.approx(13) and row.arrived["zero_fraction"] == pytest.approx(0.4)
            assert row.statistics["norm"] == pytest.approx(norm)
            assert (row.unedited is None) == (norm == 13)
        assert all(row.unedited is None and row.statistics["norm"] == pytest.approx(13) for row in before.rows)


def test_after_a_norm_rows_describe_the_accumulated_gradient_and_unedited_that_of_the_pass():
    """Oracle: by hand. (30, 0) and (30, 40), clipped to a norm of 1; the second pass alone is (0, 40)."""
    v = nn.Parameter(torch.zeros(2))
    with clip_gradients([v], norm=1.0), record_gradients([v]) as log:
        v.backward(torch.tensor([30.0, 0]))
        v.backward(torch.tensor([0.0, 40]))
    found = [(row.statistics["mean"], row.unedited["mean"], row.unedited["norm"]) for row in log.rows]
    assert found == [pytest.approx((0.5, 15, 30)), pytest.approx((0.7, 20, 40))]


def test_the_statistics_before_the_hooks_of_a_layers_output():
    net = plain()
    with edit_gradients({(net, "conv2"): lambda g: g * 3}), record_gradients(net, activations=["conv2"]) as log:
        train(net)
    (row,) = [row for row in log.rows if row.unedited is not None]
    assert row.name == "conv2" and row.statistics["norm"] == pytest.approx(3 * row.unedited["norm"])
