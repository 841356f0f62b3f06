"""Why a network is not ordinary: random numbers, decisions by the image, or rows of a batch that depend on each other.

Whether the result for an image depends on its batch is checked for its neighbors, its position, and the number of rows.
Two batches have the same number of rows, so that they use the same kernels and the outputs of independent rows do not
differ by rounding. A larger one shows what only happens to more rows: parts of a batch that run one after another, and
orders that leave two rows in their positions, such as even before odd ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import is_out_of_memory
from explainers.probe.behavior import Behavior, FirstPass, kernel_tolerance, noise_like, watch
from explainers.probe.differences import differ, difference, row_of, shapes_of, tensors_of, tolerance
from explainers.probe.layer_rows import LayerRows

_MANY = 4
"""Rows of the larger batch, in which most orders move the second row."""


def find_behavior(network: nn.Module, images: Tensor, first: FirstPass) -> Behavior:
    """Return why the probe did not take a network for an ordinary one, as far as one image shows: its random numbers.

    The first image runs twice more, and twice with fixed seeds if a generator or the output changed.
    """
    batch, output, reads, generators, before = first
    takes_one_row = len(batch) == 1
    with torch.inference_mode(False), torch.no_grad(), generators.restored(before) as restored:
        states, outputs = [], [output]
        for _ in range(2):
            states.append(generators.states())
            outputs.append(network(batch.clone()))
        states.append(generators.states())
        moved = {name for name, state in states[0].items() if state != states[1][name] != states[2][name]}
        if not moved and not differ(*outputs[:2]):
            restored.clear()
            return Behavior(takes_one_row=takes_one_row, reads=reads)
        fixed = []
        for _ in range(2):
            with generators.fixed():
                fixed.append(generators.states())
                outputs.append(network(batch.clone()))
                fixed.append(generators.states())
        # Another thread may have drawn from a generator, but not the same amount in both passes.
        drawn = {name for name in moved if fixed[0][name] != fixed[1][name] == fixed[3][name]}
        is_repeatable = not differ(*outputs[3:])
        restored.intersection_update(drawn)
        if not drawn and is_repeatable:
            # Only the first pass differs: it fills a cache, for example.
            return Behavior(takes_one_row=takes_one_row, reads=reads)
        noise = max(difference(tensors_of(outputs[0]), tensors_of(each)) for each in outputs[1:])
        return Behavior(frozenset(drawn), is_repeatable, noise, takes_one_row=takes_one_row, reads=reads)


def check_rows(network: nn.Module, images: Tensor, found: Behavior) -> Behavior:
    """Return the behavior of a network with the relative change of an image's output in other batches.

    The change is 0 if it is not more than rounding.
    """
    with torch.inference_mode(False), torch.no_grad():
        images = images.detach()
        try:
            if not found.takes_one_row:
                return replace(found, mixing=_mixing_of_neighbors(network, images))
            layers = LayerRows(network, kernel_tolerance(images.dtype))
            mixing, reads = _mixing(network, images[0], layers)
            return replace(found, mixing=mixing, misplaced="" if mixing else layers.misplaced, reads=reads)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return replace(found, mixing=0.0)  # a network that only accepts single images


def _mixing(network: nn.Module, image: Tensor, layers: LayerRows) -> tuple[float, str]:
    """Return the largest change of an image's output in a batch, and the operation by which the network reads values.

    `layers` compares the layers. The image has another position in each batch, in case the network sorts its rows.
    """
    with layers.record():
        alone, reads = watch(network, image[None])
    two = image.expand(2, *image.shape)
    noisy, quiet = [_loud(image), 0.5 * image.flip(-1)], [0.01 * image.flip(-1)]
    outputs = []
    for place, neighbors in ((0, noisy), (1, quiet)):
        with layers.compare(place, 2):
            outputs.append(_beside(network, two, place, neighbors))
    shapes = shapes_of(alone)
    if shapes and shapes == shapes_of(outputs[0]):
        return float(all(shape[:1] == (1,) for shape in shapes)), reads  # one output for the whole batch
    first = row_of(outputs[0], 0, 2)
    mixing = difference(first, row_of(outputs[1], 1, 2))
    by_count, unlike = _differences_among_many(network, image, layers, first)
    mixing, by_count = max(mixing, unlike), max(by_count, difference(row_of(alone, 0, 1), first))
    return max(mixing * (mixing > tolerance(outputs[0])), by_count * (by_count > layers.tolerance)), reads


def _differences_among_many(
    network: nn.Module, image: Tensor, layers: LayerRows, expected: list[Tensor]
) -> tuple[float, float]:
    """Return how the image's output differs in a batch of `_MANY`, and how those of its equal neighbors differ.

    Both are 0 if there is no memory for the batch, or the network refuses it.
    """
    neighbors = [_loud(image).flip(-2), 0.5 * image.flip(-1)]
    try:
        with layers.compare(1, _MANY):
            output = _beside(network, image.expand(_MANY, *image.shape), 1, neighbors)
    except Exception:  # larger batches of the call fail in the same way, and are then divided or reported
        return 0.0, 0.0
    one, own, *others = (row_of(output, k, _MANY) for k in range(_MANY))
    return difference(expected, own), max(difference(one, each) for each in others)


def _mixing_of_neighbors(network: nn.Module, images: Tensor) -> float:
    """Return the largest change of an image's output if the others change, for a network that needs all rows."""
    plain, size, image = network(images.clone()), len(images), images[0]
    mixing = 0.0
    for place, neighbors in ((0, [_loud(image), 0.5 * image.flip(-1)]), (-1, [0.01 * image.flip(-1)])):
        other = _beside(network, images, place, neighbors)
        mixing = max(mixing, difference(row_of(plain, place, size), row_of(other, place, size)))
    return mixing if mixing > tolerance(plain) else 0.0


def _beside(network: nn.Module, batch: Tensor, kept: int, neighbors: list[Tensor]) -> Any:
    """Return the output if one row keeps its image and the others get the first neighbor that the network accepts."""
    for neighbor in neighbors:
        changed = neighbor.expand_as(batch).clone()
        changed[kept] = batch[kept]
        try:
            return network(changed)
        except Exception as error:
            if is_out_of_memory(error):
                raise
    return network(batch.clone())


def _loud(image: Tensor) -> Tensor:
    """Return a very different image: ten times as large, of the other sign, and noisy."""
    return noise_like(image) - 10 * image.flip(-1)
