"""Requests about one value of a layer: the products, the bias, and the operations after the sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import explainers
from saliscope.compute import engine, network_calls
from saliscope.compute.arithmetic.answers import Arithmetic, Operation, Product, ValueOf
from saliscope.compute.channels import network as channels_network
from saliscope.compute.channels.engine import cell_of, load
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.request import Request

LISTED = 10
"""Products in the table."""
LARGEST = 16_384
"""Values of a patch; of a larger one, only the channel with the largest product is sent."""


def trace(request: Request, number: int, cell: tuple[int, int], run: Run) -> Iterator[Any]:
    """Yield `Waiting`, then how the value of a channel at a cell (row, column) of its map is computed.

    Errors   as `engine.explain`; Refused for a channel or a cell that does not exist
    """
    settings, _, images = yield from load(request, run)
    name, layer = settings.loaded.name, settings.layer
    with turns.enqueue(run, long=False) as turn:
        yield from engine.wait_turn(turn)
        place = cell_of(channels_network.sources(name, layer, images), cell)
        found = network_calls.run(name, _trace, images, layer=layer, channel=number, cell=place)
    yield ValueOf(settings, number, cell, found)


def _trace(network: Any, images: Any, *, layer: str, channel: int, cell: tuple[int, int]) -> Arithmetic:
    traced = explainers.trace_value(network, images, layer, channel, cell)
    total = traced.sum
    strongest = total.strongest(LISTED)
    products = [_product(total, index) for index in strongest]
    is_patch = total.kind == "convolution" and total.inputs.ndim == 3 and total.inputs[0].numel() > 1
    first = (total.channels or range(1)).start
    patch: list[Any] = [total.inputs.float(), total.weights.float(), total.inside] if is_patch else [None] * 3
    if is_patch and total.inputs.numel() > LARGEST and strongest:
        only = strongest[0][0]
        first, patch = first + only, [each[only : only + 1] for each in patch]
    kernels = None
    if is_patch and total.from_image and len(total.inputs) == 3 and total.name:
        kernels = network.get_submodule(total.name).weight.detach().float().cpu()
    return Arithmetic(
        kind=total.kind,
        name=total.name,
        value=traced.value,
        computed=traced.computed,
        total=float(total.products.sum()),
        bias=total.bias,
        count=total.products.numel(),
        largest=products,
        others=float(total.products.sum()) - sum(each.input * each.weight for each in products),
        operations=[Operation(step.kind, step.name, step.before, step.after, step.numbers) for step in traced.steps],
        path=traced.path,
        first_channel=first,
        inputs=patch[0],
        weights=patch[1],
        inside=patch[2],
        kernels=kernels,
        kernel=_kernel_of(kernels, total.weights),
    )


def _product(total: Any, index: tuple[int, ...]) -> Product:
    cell = None
    if total.rows and len(index) == 3:
        cell = (total.rows[index[1]], total.columns[index[2]])
    channel = index[0] if total.channels is None else total.channels[index[0]]
    inside = bool(total.inside[index])
    return Product(channel, cell, inside, float(total.inputs[index]), float(total.weights[index]))


def _kernel_of(kernels: Any, weights: Any) -> int:
    """Return the number of the kernel with these weights."""
    if kernels is None:
        return 0
    return int((kernels.double() - weights).abs().flatten(1).sum(1).argmin())
