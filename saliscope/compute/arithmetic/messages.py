"""Labels and messages about how one value is computed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from saliscope import percentages

if TYPE_CHECKING:
    from explainers import PathStep
    from saliscope.compute.arithmetic.answers import Operation, Product, ValueOf

ACTIVATIONS = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "hardtanh": "Hardtanh",
    "silu": "SiLU",
    "gelu": "GELU",
    "hardswish": "Hardswish",
    "hardsigmoid": "Hardsigmoid",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "leaky_relu": "Leaky ReLU",
    "elu": "ELU",
    "selu": "SELU",
    "mish": "Mish",
    "clamp": "Clamp",
    "clamp_min": "Clamp",
}
"""Names of activation functions by the operation of PyTorch."""
COLORS = ("red", "green", "blue")

TERMS = {
    "title": "How this value is computed",
    "waiting": "Computing …",
    "patch": "Patch",
    "kernel": "Kernel",
    "products": "Products",
    "channel": "Input channel",
    "columns": ["Input", "Value", "Weight", "Product"],
    "largest": "Largest products",
    "path": "Strongest path",
    "color_patch": "Patch of the image",
    "color_kernel": "Kernel in color",
    "kernels": "All kernels of this layer in color; gray is 0",
}
"""Labels used by the scripts in page/arithmetic/."""


number = partial(percentages.number, form=".4g")


def title(step: ValueOf) -> str:
    """Return the value in one sentence."""
    row, column = step.cell[0] + 1, step.cell[1] + 1
    value = number(step.arithmetic.value)
    return f"Channel {step.number} of {step.settings.layer} at row {row}, column {column}: {value}"


def rows(step: ValueOf) -> list[list[str]]:
    """Return the operations in order: a name, the arithmetic, and the value after it."""
    found = step.arithmetic
    listed = [[f"Sum of {found.count:,} product{'s' * (found.count != 1)}", _where(found), number(found.total)]]
    if found.bias:
        listed.append(["Bias", _signed(found.bias), number(found.total + found.bias)])
    return listed + [[*_operation(each), number(each.after)] for each in found.operations]


def _where(found: Any) -> str:
    kinds = {"linear": "linear layer", "product": "product of two values", "mean": "mean"}
    if found.inputs is not None:
        kind = "{} × {} convolution".format(*found.inputs.shape[1:])
    else:
        kind = kinds.get(found.kind, "1 × 1 convolution")
    return f"{found.name}, {kind}" if found.name else kind


def _operation(step: Operation) -> tuple[str, str]:
    """Return the name of an operation, and its arithmetic."""
    numbers = {name: number(value) for name, value in step.numbers.items()}
    if step.kind in ("batch_norm", "layer_norm"):
        name = "Batch norm" if step.kind == "batch_norm" else "Layer norm"
        scaled = (
            f"({number(step.before)} {_signed(-step.numbers['mean'])}) / √({numbers['variance']} + {numbers['eps']})"
        )
        return name, f"{scaled} × {numbers['weight']} {_signed(step.numbers['bias'])}"
    if step.kind == "add":
        return "Addition", f"{_signed(step.numbers['added'])}, such as a skip connection"
    if step.kind == "scale":
        return (
            "Scale",
            f"× {numbers['factor']}" if "factor" in numbers else f"{numbers['dividend']} / {number(step.before)}",
        )
    if step.kind == "softmax":
        return "Softmax", f"exp({number(step.before)} − {numbers['maximum']}) / {numbers['sum']}"
    name = ACTIVATIONS.get(step.name, step.name)
    if step.numbers.get("low") == 0 and step.numbers.get("high") == 6:
        return "ReLU6", "limited to 0 to 6"
    if step.name == "relu":
        return name, "0 if negative"
    return name, f"of {number(step.before)}"


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {number(abs(value))}"


def check(step: ValueOf) -> str:
    """Return how well the arithmetic reproduces the value of the network."""
    difference = abs(step.arithmetic.computed - step.arithmetic.value)
    again = number(step.arithmetic.computed)
    return f"Computed again in double precision: {again}, a difference of {difference:.1g} from the network."


def product(each: Product, step: ValueOf) -> list[str]:
    """Return a row of the table of products: input, its value, weight, product."""
    return [
        _input(each.channel, each.cell, step.arithmetic.kernels is not None) + ("" if each.inside else ", padding"),
        number(each.input),
        number(each.weight),
        number(each.input * each.weight),
    ]


def others(step: ValueOf) -> list[str]:
    """Return the last row of the table of products, or an empty list if all are listed."""
    found = step.arithmetic
    count = found.count - len(found.largest)
    return [f"{count:,} others", "", "", number(found.others)] if count else []


def _input(channel: int | None, cell: tuple[int, int] | None, is_color: bool = False) -> str:
    which = COLORS[channel] if is_color and channel is not None and channel < 3 else f"channel {channel}"
    return which if cell is None else f"{which}, row {cell[0] + 1}, column {cell[1] + 1}"


def path(part: PathStep) -> str:
    """Return a part of the strongest path in one sentence."""
    layer = part.name or {"mean": "a mean", "product": "a product"}.get(part.kind, part.kind)
    source = _input(part.channel, part.cell)
    return f"{layer}: {source}; {number(part.input)} × {number(part.weight)} = {number(part.product)}"
