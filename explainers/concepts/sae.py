"""A sparse autoencoder with the k largest activations of each cell."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.concepts.dictionaries import Dictionary, Fit

_BATCH, _FEW, _RATE = 256, 64, 2e-3
"""Cells in a batch, batches in an epoch for which a batch may be smaller, and the step size of Adam."""
_CANDIDATES = 8192
"""Cells among which the first directions are chosen."""
_DEAD = 1 / 32
"""Weight of the loss by which concepts that were not active in the last epoch learn the rest of the cells."""


@dataclass(frozen=True, eq=False)
class SparseAutoencoder(Dictionary):
    """u = the `active` largest values of ReLU((x - b) E + e), and 0 for the others."""

    encoder: Tensor
    bias: Tensor
    active: int

    def encode(self, cells: Tensor) -> Tensor:
        values = (cells - self.offset.to(cells)) @ self.encoder.to(cells) + self.bias.to(cells)
        return keep_largest(values.relu(), self.active)


def keep_largest(values: Tensor, count: int) -> Tensor:
    """Return the `count` largest of the values [..., k], and 0 for the others."""
    largest = values.topk(min(count, values.shape[-1]), dim=-1)
    return torch.zeros_like(values).scatter(-1, largest.indices, largest.values)


class SaeFit(Fit):
    """Training of a top-k sparse autoencoder on cells [P, K] by Adam; a step is a batch of cells.

    The directions start at cells that are far from each other. Concepts that were not active during an epoch learn what
    the others leave.

    Source   Gao et al. 2024, sections 2.3 and 2.4 and appendix A, arXiv:2406.04093
    """

    def __init__(
        self, cells: Tensor, k: int, active: int, epochs: int, seed: int, state: dict[str, Any] | None = None
    ) -> None:
        self.cells = cells if cells.dtype == torch.float64 else cells.float()
        self.active, self.seed, self.order = min(active, k), seed, torch.empty(0)
        self.size = max(32, min(_BATCH, len(cells) // _FEW))
        self.batches = math.ceil(len(cells) / self.size)
        self.steps = epochs * self.batches
        mean = self.cells.mean(0)
        self.scale = float((self.cells - mean).square().mean().sqrt())
        generator = torch.Generator().manual_seed(seed)
        start = _spread_cells((self.cells - mean) / self.scale, k, generator)
        decoder = start / start.norm(dim=1, keepdim=True).clamp(min=1e-12)
        given = [mean / self.scale, decoder.T.clone(), mean.new_zeros(k), decoder]
        self.seen, self.alive = mean.new_zeros(k, dtype=torch.bool), mean.new_ones(k, dtype=torch.bool)
        if state is not None:
            given, self.done = state["parameters"], state["done"]
            self.seen, self.alive = state["seen"].clone(), state["alive"].clone()
        self.parameters = [each.detach().clone().requires_grad_() for each in given]
        self.optimizer = torch.optim.Adam(self.parameters, lr=_RATE)
        if state is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # Adam updates its tensors in place

    @property
    def state(self) -> dict[str, Any]:
        parameters = [each.detach() for each in self.parameters]
        optimizer = self.optimizer.state_dict()
        return {
            "parameters": parameters, "optimizer": optimizer, "done": self.done, "seen": self.seen, "alive": self.alive
        }  # fmt: skip

    def step(self) -> None:
        epoch, batch = divmod(self.done, self.batches)
        if batch == 0 or not len(self.order):
            # Each epoch has its own generator, so that a fit that continues has the same order.
            generator = torch.Generator().manual_seed(self.seed + 1 + epoch)
            self.order = torch.randperm(len(self.cells), generator=generator).to(self.cells.device)
        if batch == 0 and epoch > 0:
            self.alive, self.seen = self.seen, torch.zeros_like(self.seen)
        # The rate decreases over the last fifth of the steps.
        rate = _RATE * min(1.0, 5 * (1 - self.done / self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        rows = self.cells[self.order[batch * self.size : (batch + 1) * self.size]] / self.scale
        with torch.enable_grad():
            loss = self._loss(rows)
            gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        with torch.no_grad():
            self.parameters[3].div_(self.parameters[3].norm(dim=1, keepdim=True))
        self.done += 1

    def _loss(self, rows: Tensor) -> Tensor:
        offset, encoder, bias, decoder = self.parameters
        values = ((rows - offset) @ encoder + bias).relu()
        codes = keep_largest(values, self.active)
        self.seen |= (codes > 0).any(0)
        rest = rows - offset - codes @ decoder
        loss = rest.square().mean()
        dead = ~self.alive & ~self.seen
        if bool(dead.any()):
            own = (rows - offset) @ encoder + bias
            spare = keep_largest(own.masked_fill(~dead, -torch.inf), min(self.active, int(dead.sum())))
            loss = loss + _DEAD * (rest.detach() - spare @ decoder).square().mean()
        return loss

    @property
    def directions(self) -> Tensor:
        return self.parameters[3].detach()

    def result(self) -> SparseAutoencoder:
        offset, encoder, bias, decoder = (each.detach().double() for each in self.parameters)
        unit = decoder / decoder.norm(dim=1, keepdim=True)
        # In the units of the layer: the activations are multiplied by the scale of the cells.
        found = SparseAutoencoder(offset * self.scale, unit, encoder, bias * self.scale, self.active)
        return found.sorted(self.cells, encoder=lambda order: encoder[:, order], bias=lambda order: found.bias[order])


def _spread_cells(cells: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return k of the cells [P, K], each with a probability proportional to the squared distance from those before it.

    Small noise separates equal cells. The first distance is that from 0.

    Source   Arthur & Vassilvitskii 2007 (k-means++), section 2.2
    """
    cells = cells[torch.randperm(len(cells), generator=generator)[:_CANDIDATES].to(cells.device)]
    distances, chosen = cells.square().sum(1), []
    for _ in range(k):
        weights = distances.double().cumsum(0).cpu()
        drawn = float(torch.rand((), generator=generator, dtype=torch.float64)) * weights[-1]
        index = min(int(torch.searchsorted(weights, drawn)), len(cells) - 1)
        chosen.append(cells[index])
        distances = torch.minimum(distances, (cells - cells[index]).square().sum(1))
    noise = torch.randn(k, cells.shape[1], generator=generator, dtype=torch.float32).to(cells)
    return torch.stack(chosen) + 0.01 * noise
