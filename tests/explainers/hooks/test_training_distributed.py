"""Gradient hooks in several processes: the result is that of one process with the whole batch, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import explainers
from explainers import (
    add_gradient_noise,
    clip_gradients,
    freeze,
    record_gradients,
    replace_gradient,
    scale_gradients,
)
from tests.support.processes import in_processes

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
        scale_gradients(net, {"first.*": 3}),
        add_gradient_noise(net, std=0.1),
        clip_gradients(inner.parameters(), value=5),
        record_gradients(inner, histograms=3) as before,
        clip_gradients(net, norm=1.0),
        freeze(net, "second.bias"),
        replace_gradient(inner.first.bias, lambda g: g.mul_(2)),
        record_gradients(dict(inner.named_parameters())) as after,
    ):
        yield [arrived, before, after]


BLOCKS: dict[str, Callable[[nn.Module, nn.Module], AbstractContextManager[Any]]] = {
    "value": lambda net, inner: clip_gradients(net, value=0.5),
    "norm": lambda net, inner: clip_gradients(inner, norm=1.0),
    "all": every_block,
}


def gradients(net: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]


def table(logs: list[explainers.GradientLog] | None) -> list[Any]:
    return [(row.step, row.name, dict(row.statistics), dict(row.arrived)) for log in logs or [] for row in log.rows]


def train(rank: int | None, block: str, case: str, options: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the gradients after each step, and the rows of the logs, of a process or of one with all rows."""
    inner = Net(part="unused" in case)
    distributed_run = rank is not None
    before = case != "wrapped inside the block"
    net: nn.Module = DistributedDataParallel(inner, **options) if distributed_run and before else inner
    found = []

    def pass_over(step: int) -> None:
        if distributed_run:
            loss(net(rows(rank, step), **({"side": rank == 1} if "unused" in case else {}))).backward()
        elif "unused" in case:
            (loss(inner(rows(0, step))) / 2 + loss(inner(rows(1, step), side=True)) / 2).backward()
        else:
            loss(inner(torch.cat([rows(0, step), rows(1, step)]))).backward()

    with BLOCKS[block](net, inner) as logs:
        if distributed_run and not before:
            net = DistributedDataParallel(inner, **options)
        for step in range(3):
            net.zero_grad(set_to_none=step != 2)
            pass_over(step)
            if case == "accumulated":
                pass_over(step + 10)
            found.append(gradients(inner))
    return found, table(logs)


def train_all(rank: int, cases: list[Case]) -> list[Any]:
    return [train(rank, *case) for case in cases]


Case = tuple[str, str, dict[str, Any]]
QUICK: list[Case] = [("value", "plain", {}), ("all", "accumulated", {})]
CASES: list[Case] = [
    ("norm", "plain", {}),
    ("all", "wrapped inside the block", {}),
    ("norm", "accumulated", {"gradient_as_bucket_view": True}),
    ("all", "plain", {"static_graph": True}),
    ("all", "accumulated", {"static_graph": True, "gradient_as_bucket_view": True}),
    ("all", "unused", {"find_unused_parameters": True}),
    ("value", "unused", {"find_unused_parameters": True, "gradient_as_bucket_view": True}),
]


def close(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.allclose(one, two, rtol=1e-4, atol=1e-5)
    if isinstance(one, float):
        return one == pytest.approx(two, rel=1e-3, abs=1e-5)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(close(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(close, one, two))
    return bool(one == two)


@pytest.mark.parametrize("cases", [QUICK, pytest.param(CASES, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_two_processes_give_the_gradients_and_the_log_of_one_process_with_all_rows(tmp_path, cases):
    for results in in_processes(train_all, tmp_path, cases):
        for case, (found, rows) in zip(cases, results, strict=True):
            expected, expected_rows = train(None, *case)
            assert close(found, expected), case
            if case[1] == "unused":  # no gradient of this process announces those of the other
                rows, expected_rows = [sorted(each, key=lambda row: row[:2]) for each in (rows, expected_rows)]
            assert close(rows, expected_rows), case
