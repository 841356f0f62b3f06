"""Compiled networks, for the many variants of one image (`explain(..., compile=True)`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption, shorten
from explainers.nested import map_tensors

_requested: ContextVar[bool] = ContextVar("compile", default=False)


@contextmanager
def compiling() -> Iterator[None]:
    """Run the variants of calls inside the block in a compiled network."""
    token = _requested.set(True)
    try:
        yield
    finally:
        _requested.reset(token)


def is_requested() -> bool:
    """Return whether the surrounding call requests a compiled network."""
    return _requested.get()


class CompiledNetwork:
    """A network compiled by `torch.compile` for one number of rows, to which smaller batches are padded.

    torch compiles again for another number of rows, which takes longer than the padding. `checked` is whether the
    scores were compared with those of the network.
    """

    def __init__(self, network: nn.Module) -> None:
        self.run = torch.compile(network, dynamic=False)
        self.rows = 0
        self.checked = False

    def __call__(self, batch: Tensor) -> Any:
        """Return the output of the network for a batch.

        Errors   BadOption if the network cannot be compiled
        """
        from torch._dynamo.exc import TorchDynamoException  # the compiler takes seconds to start

        count = len(batch)
        self.rows = max(self.rows, count)
        if count < self.rows:
            padding = batch[-1:].expand(self.rows - count, *batch.shape[1:])
            batch = torch.cat([batch, padding]).contiguous(memory_format=torch.channels_last)
        try:
            output = self.run(batch)
        except TorchDynamoException as error:
            reason = shorten(str(error).strip().partition("\n")[0])
            raise BadOption(f"torch cannot compile the network: {reason}. Omit compile=True.") from error
        return map_tensors(output, lambda tensor: tensor[:count])
