"""Gradient hooks in several processes: the result is that of one process with the whole batch, or a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import explainers
from explainers import BadOption, clip_gradients, record_gradients
from tests.support.processes import in_processes
from tests.support.sharding import each_kind, shard
from tests.support.training import gradients

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="needs torch.distributed with gloo"
)


class Net(nn.Module):
    """Two layers, and a third that only the second process uses if `part` is set."""

    def __init__(self, part: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        if part:
            self.side = nn.Linear(3, 2)

    def forward(self, x: Tensor, side: bool = False) -> Tensor:
        scores = self.second(self.first(x).tanh())
        return scores + self.side(x) if side else scores


def rows(rank: int, step: int) -> Tensor:
    """The rows of one process; the gradients of the two processes differ much in size and direction."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(4, 3, generator=generator) * (1 + 9 * rank)


def loss(scores: Tensor) -> Tensor:
    return 100 * (scores - 1).pow(2).mean()


@contextmanager
def every_block(net: nn.Module, inner: nn.Module) -> Iterator[list[explainers.GradientLog]]:
    """All blocks, some of them before a norm and some after it."""
    with (
        record_gradients(net) as arrived,
        explainers.scale_gradients(net, {"first.*": 3}),
        explainers.add_gradient_noise(net, std=0.1),
        clip_gradients(inner.parameters(), value=5),
        record_gradients(inner, histograms=3) as before,
        clip_gradients(net, norm=1.0),
        explainers.freeze(net, "second.bias"),
        explainers.replace_gradient(inner.first.bias, lambda g: g.mul_(2)),
        record_gradients(dict(inner.named_parameters())) as after,
    ):
        yield [arrived, before, after]


BLOCKS: dict[str, Callable[[nn.Module, nn.Module], AbstractContextManager[Any]]] = {
    "value": lambda net, inner: clip_gradients(net, value=0.5),
    "all": every_block,
}


Rows = dict[str, dict[str, float]]


def table(logs: list[explainers.GradientLog] | None) -> list[Rows]:
    """The rows of each log, whose order depends on when gradients arrive."""
    return [
        {
            f"{row.step} {row.name}": {**row.statistics, **{f"{name} before": n for name, n in row.arrived.items()}}
            for row in log.rows
        }
        for log in logs or []
    ]


def train(rank: int | None, block: str, case: str, options: dict[str, Any]) -> tuple[list[Tensor], list[Rows]]:
    """Return the gradients after each step, and the rows of the logs, of a process or of one with all rows.

    The passes of one process in `no_sync` and the one after them are one pass over the sum of their losses.
    """
    inner = Net(part="unused" in case)
    net: nn.Module = inner
    found = []

    def loss_of_all(step: int) -> Tensor:
        if "unused" in case:
            return loss(inner(rows(0, step))) / 2 + loss(inner(rows(1, step), side=True)) / 2
        return loss(inner(torch.cat([rows(0, step), rows(1, step)])))

    def local_pass(step: int) -> None:
        total = loss(net(rows(rank, step), **({"side": rank == 1} if "unused" in case else {})))
        with torch.no_grad():
            net(rows(rank, step))
        total.backward()

    def pass_over(step: int) -> None:
        steps = [step, step + 20, step + 40] if "no_sync" in case else [step]
        if rank is None:
            sum(map(loss_of_all, steps)).backward()
            return
        for each in steps[:-1]:
            with net.no_sync():
                local_pass(each)
        local_pass(steps[-1])

    if rank is not None:
        net = DistributedDataParallel(inner, **options)
    with BLOCKS[block](net, inner) as logs:
        for step in range(3):
            net.zero_grad(set_to_none=step != 2)
            pass_over(step)
            if "accumulated" in case:
                pass_over(step + 10)
            found.append(gradients(inner))
    return found, table(logs)


def train_all(rank: int) -> list[Any]:
    return [train(rank, *case) for case in CASES]


Case = tuple[str, str, dict[str, Any]]
CASES: list[Case] = [
    ("value", "no_sync", {}),
    ("all", "accumulated", {"static_graph": True, "gradient_as_bucket_view": True}),
    ("all", "unused", {"find_unused_parameters": True}),
]


def assert_same(found: tuple[Any, list[Rows]], expected: tuple[Any, list[Rows]], case: Any = None) -> None:
    assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5, msg=lambda text: f"{case}: {text}")
    assert_close(found[1], expected[1], rtol=1e-3, atol=1e-5, msg=lambda text: f"{case}: {text}")


def test_two_processes_give_the_gradients_and_the_log_of_one_process_with_all_rows(tmp_path):
    for results in in_processes(train_all, tmp_path):
        for case, found in zip(CASES, results, strict=True):
            assert_same(found, train(None, *case), case)


# One process


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_network_outside_a_wrapper_is_not_affected_by_the_group(group):
    net = Net()
    DistributedDataParallel(Net())
    with clip_gradients(net, value=0.01), record_gradients(net) as log:
        loss(net(rows(0, 0))).backward()
    assert max(float(each.abs().max()) for each in gradients(net)) == pytest.approx(0.01)
    assert len(log.rows) == 4


def test_an_averaged_gradient_that_was_used_too_early_is_refused(group):
    from torch.utils.checkpoint import checkpoint

    net = DistributedDataParallel(Net())
    with clip_gradients(net, value=1):
        with pytest.raises(BadOption, match=r"torch.autograd.grad does not average.*loss.backward\(\)"):
            torch.autograd.grad(loss(net(rows(0, 0))), list(net.parameters()))
    inner = Net()
    net = DistributedDataParallel(inner, static_graph=True)
    inner.forward = lambda x: inner.second(checkpoint(inner.first, x, use_reentrant=True))
    with clip_gradients(net, value=1), pytest.raises(BadOption, match="use_reentrant=False"):
        loss(net(rows(0, 0).requires_grad_())).backward()


def test_a_block_entered_while_gradients_accumulate_is_refused(group):
    """The gradients may be local ones of a pass in `no_sync`, or averaged ones; only a norm covers both."""
    expected = Net()
    for step in (0, 1):
        loss(expected(rows(0, step))).backward()
    torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
    inner = Net()
    net = DistributedDataParallel(inner)
    loss(net(rows(0, 0))).backward()
    with explainers.scale_gradients(net, {"*": 2}), pytest.raises(BadOption, match="before the first backward pass"):
        loss(net(rows(0, 1))).backward()
    inner = Net()
    net = DistributedDataParallel(inner)
    with net.no_sync():
        loss(net(rows(0, 0))).backward()
    with clip_gradients(net, norm=0.5):
        loss(net(rows(0, 1))).backward()
    assert_close(gradients(inner), gradients(expected), rtol=1e-4, atol=1e-5)


SHARDED: dict[str, Callable[[nn.Module], Any]] = {
    "clip_grad_norm_(model.parameters(), 2.0)": lambda net: clip_gradients(net, norm=2.0),
    "parameter.grad.mul_": lambda net: explainers.scale_gradients(net, {"*": 2}),
    "parameter.grad.zero_()": lambda net: explainers.freeze(net, "first.*"),
    "torch.randn_like(parameter.grad)": lambda net: explainers.add_gradient_noise(net, std=1),
    "parameter.grad.full_tensor()": lambda net: record_gradients(net),
}
SHARDED_TENSORS: dict[str, Callable[[nn.Module], Any]] = {
    "clip_grad_value_(model.parameters(), 2.0)": lambda net: clip_gradients(net.parameters(), value=2.0),
    "parameter.grad": lambda net: explainers.replace_gradient(next(net.parameters()), torch.neg),
}


@pytest.mark.filterwarnings("ignore")
@each_kind
def test_sharded_parameters_are_refused_with_the_line_to_write(group, kind):
    net = shard(Net(), kind)

    def refuses(blocks: dict[str, Callable[[nn.Module], Any]]) -> None:
        for line, block in blocks.items():
            with pytest.raises(BadOption, match=rf"sharded(?s:.*){re.escape(line)}"), block(net):
                raise AssertionError("never entered")

    refuses(SHARDED | SHARDED_TENSORS)
    net(rows(0, 0))  # now some parameters are whole until the backward pass
    refuses(SHARDED)
    inner = Net()
    with pytest.raises(BadOption, match="before the block"), clip_gradients(inner, norm=2):
        loss(shard(inner, kind)(rows(0, 0))).backward()
