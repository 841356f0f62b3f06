"""The result of `describe`: one row for each call of a layer."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from explainers.display.display import Display, Displayed
from explainers.display.tables import paragraphs, table_html

HEADS = ("layer", "kind", "output", "parameters", "multiply-adds", "output kB", "ms", "receptive field")


@dataclass(frozen=True)
class LayerDescription:
    """One call of a layer, including the layers inside it, for one image.

    `shape` is the output's shape for one image, `parameters` the number of parameters, `multiply_adds` those of
    convolutions, matrix products and attention, `output_bytes` the size of the output, `seconds` the time of one
    forward pass, and `receptive_field` the (height, width) in pixels on which the central cell depends, or None
    without a grid. `is_leaf` is True if no other layer runs inside it.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    multiply_adds: int
    output_bytes: int
    seconds: float
    receptive_field: tuple[int, ...] | None
    is_leaf: bool


@dataclass(frozen=True)
class Description(Displayed):
    """A network's layers in running order, and its totals for one image.

    `parameters` and `trainable` count every parameter once, `output_bytes` is the sum over the outputs of all leaves
    (what a backward pass has to keep, at most), and `seconds` the time of one forward pass of one image.
    """

    network: str
    input_shape: tuple[int, ...]
    layers: list[LayerDescription]
    parameters: int
    trainable: int
    multiply_adds: int
    output_bytes: int
    seconds: float

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dictionary for each layer, for a DataFrame."""
        return [asdict(layer) for layer in self.layers]

    def to_csv(self) -> str:
        """Return the layers as CSV text, with shapes as 1x64x56x56."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [each.name for each in fields(LayerDescription)], lineterminator="\n")
        writer.writeheader()
        for row in self.to_rows():
            row |= {name: _joined(row[name]) for name in ("shape", "receptive_field")}
            writer.writerow(row | {"seconds": f"{row['seconds']:.6f}"})
        return text.getvalue()

    def __str__(self) -> str:
        """Return a table of the layers, and the totals."""
        rows = self._cells()
        widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (HEADS, *rows)]
        return "\n".join([*lines, repr(self)])

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                layer.name,
                layer.kind,
                _joined(layer.shape),
                f"{layer.parameters:,}",
                f"{layer.multiply_adds:,}",
                f"{layer.output_bytes / 1e3:,.0f}",
                f"{layer.seconds * 1e3:.2f}",
                _joined(layer.receptive_field),
            )
            for layer in self.layers
        ]

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the totals and the layers as a table."""
        layers = f'<div style="max-height: 480px; overflow: auto">{table_html(HEADS, self._cells())}</div>'
        return Display(paragraphs([repr(self)]) + layers, repr(self))

    def __repr__(self) -> str:
        return (
            f"Description({self.network}, {len(self.layers)} layers, {self.parameters:,} parameters, "
            f"{self.multiply_adds:,} multiply-adds, {self.output_bytes / 1e6:,.1f} MB of outputs, "
            f"{self.seconds * 1e3:.1f} ms)"
        )


def _joined(sizes: tuple[int, ...] | None) -> str:
    return "" if sizes is None else "x".join(map(str, sizes))
