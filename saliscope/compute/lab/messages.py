"""Labels and messages of the gradient lab."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from saliscope.compute import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

LAB = "Gradient lab"
EXPRESSION, TRAINING, IMAGE = "Expression", "Training", "Image"

# Expression: labels of the form

EXPRESSION_TEXT = (
    "A tensor hook is a function that receives a gradient in the backward pass. Its return value replaces the "
    "gradient. Choose an experiment or write your own: a line of numbers defines a leaf tensor, every other line is an "
    "operation, and the backward pass starts at the last one."
)
FORM = {
    "gallery": "Experiments",
    "program": "Expression",
    "grammar": "Numbers, (1, 2, 3), [[1, 2], [3, 4]], names, + - * / ^, mean sum relu exp log sqrt tanh sigmoid. "
    "Press Ctrl+Enter to run.",
    "seed": "Upstream gradient",
    "seed_hint": "ones",
    "where": "Hook on",
    "hook": "Hook",
    "amount": "by",
    "again": "Second pass",
    "second": "second upstream gradient",
    "run": "Run",
    "code": "PyTorch code",
    "copy": "Copy",
    "copied": "Copied",
    "failed": "Select and copy manually",
    "table": "Tensors",
    "graph": "Graph",
    "columns": ["Tensor", "Value", "Gradient without the hook", "With the hook", "After the second pass"],
    "none": "none",
    "legend": "On each edge: → value (forward), ← gradient (backward). Blue is negative, red is positive, and opacity "
    "is the magnitude on a log scale. Changed gradients have a frame.",
    "hooked": "hook",
    "was": "was",
    "leaf": "tensor",
    "not_run": "Not run. Correct the marked field.",
    "changed": "The expression has changed. Press Run to update the result.",
    "last_valid": "The result below is from the last valid expression.",
}
HOOKS = [
    ("record", "record only", ""),
    ("scale", "scale by a factor", "factor"),
    ("clip_value", "clip by value", "threshold"),
    ("clip_norm", "clip by norm", "threshold"),
    ("zeros", "set to zero", ""),
    ("square", "square", ""),
    ("negate", "negate (gradient reversal)", ""),
]
AGAIN = [
    ("", "none"),
    ("keep", "with the hook; .grad accumulates"),
    ("removed", "after removing the hook and resetting .grad"),
]

EXPERIMENTS = {
    "double": (
        "Gradient doubled",
        "The hook doubles the upstream gradient (1, 2, 3): v.grad = (2, 4, 6). After removing the hook: (1, 2, 3).",
    ),
    "square": (
        "y = 2v²",
        "dy/dv = 4v = (28, 32, 36); with the upstream gradient (1, 2, 3), the vector-Jacobian product is "
        "v.grad = (28, 64, 108).",
    ),
    "chain": (
        "x² + 1, then mean of squares",
        "Hooks also run on non-leaf tensors such as y: ∂z/∂y = y/2 = [[1, 2.5], [5, 8.5]]. x.grad = x³ + x; "
        "y.grad stays None.",
    ),
    "mean": (
        "mean(x²) × 20200910",
        "∂z/∂x = 2x/4 = 1 in each entry; the hook scales it to 20200910. After removing the hook and resetting "
        "x.grad: 1.",
    ),
    "product": (
        "(x + y) · xy",
        "∂c/∂a = b = 15 is recorded at a; a.grad stays None because autograd only fills .grad of leaves. x.grad = 55, "
        "y.grad = 39.",
    ),
    "squared": (
        "Squared, accumulated",
        "The hook squares the upstream gradient (1, 1, 2) to (1, 1, 4). A second pass with (1, 1, 1) accumulates: "
        "v.grad = (2, 2, 5).",
    ),
    "shared": (
        "m1·m2 + x1·m3",
        "x1 is used twice, so its gradient is the sum over both uses: 1 from the addition, 4 from the product.",
    ),
}


def ran(hook: str, where: str, result: str) -> str:
    """Return the line above a result."""
    action = next(label for name, label, _ in HOOKS if name == hook)
    return f"Backward pass from {result}; hook on {where}: {action}."


def moved(name: str, instead: str) -> str:
    """Return the note for a hooked tensor that is no longer in the expression."""
    return f"The expression has no {name}, so the hook was moved to {instead}."


# Expression: errors

ONLY_NUMBERS = "only numbers are allowed here, as in (1, 2, 3) or [[1, 2], [3, 4]]."
NOTHING_TO_MEASURE = (
    "The network detects nothing in this image, so there is no score to differentiate. Choose another image."
)
NOTHING_WRITTEN = "The expression is empty. Try x = (1, 2, 3), followed by mean(x^2) on the next line."
NO_TENSOR = "There is no leaf tensor. Start with a line such as x = (1, 2, 3)."
NAMELESS = "a constant needs a name, as in x = (1, 2, 3)."
TOO_NESTED = "tensors can have at most two dimensions here."
RAGGED = "all rows of a tensor must have the same length."
TOO_DEEP = "the expression is nested too deeply. Assign inner expressions to names on separate lines."
TWO_VECTORS = "an operation needs at least one named tensor. Name one of these constants."
BAD_FORM = "The form is incomplete. Choose an experiment to start again."
NAN_OR_INFINITY = "NaN and ∞ are not supported. Write a number up to 1e12."


def plain_number(value: float) -> str:
    """Format a number in few characters, such as 1e-9 or −1000."""
    mantissa, _, exponent = f"{value:g}".partition("e")
    return (f"{mantissa}e{int(exponent)}" if exponent else mantissa).replace("-", "−", 1 if value < 0 else 0)


def amount_range(hook: str, low: float, high: float) -> str:
    """Return the message for an invalid number of the hook."""
    label = next(label for name, _, label in HOOKS if name == hook)
    return f"The {label} must be a number from {plain_number(low)} to {plain_number(high)}."


def at(line: int, position: int, why: str) -> str:
    """Return an error message with its position."""
    return f"Line {line}, position {position}: {why}"


def too_long(length: int, most: int) -> str:
    return f"The expression has {length} characters, but at most {most} are allowed."


def unknown_sign(sign: str) -> str:
    shown = f"“{sign}”" if sign.isprintable() else "an unprintable character"
    return f"unexpected character {shown}." if sign.isprintable() else f"{shown} is not allowed."


def unexpected(text: str) -> str:
    if text == "=":
        return "“=” must follow a single name at the start of a line."
    return f"expected a number, a name or a bracket, got {_token(text)}."


def bad_name(name: str) -> str:
    return f"“{short(name)}” is not a valid name. Use up to twelve letters and digits, such as x or m1."


def twice(name: str) -> str:
    return f"{short(name)} is already defined. Use another name."


def unknown_name(name: str, known: Sequence[str], functions: Sequence[str]) -> str:
    defined = f"Defined so far: {', '.join(known)}." if known else "Define it on a line above."
    return f"unknown name “{short(name)}”. {defined} Functions: {', '.join(functions)}."


def needs_bracket(function: str) -> str:
    return f"{function} needs brackets: {function}(x)."


def no_tensor_in(function: str) -> str:
    return f"{function} needs a named tensor as its argument."


def missing_times(left: str, right: str) -> str:
    return f"missing operator between {short(left)} and {short(right)}. Try {short(left)} * {short(right)}."


def not_closed(sign: str, text: str) -> str:
    return f"missing closing “{sign}” before {_token(text)}."


def _token(text: str) -> str:
    return {"": "the end", "\n": "the end of the line"}.get(text, f"“{short(text)}”")


def same_tensor(name: str) -> str:
    return f"this is only another name for {short(name)}. Write an operation."


def shapes(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    return f"shapes {form(a)} and {form(b)} cannot be broadcast."


def form(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "()"


def no_number(a: float, sign: str, b: float, most: float) -> str:
    return f"{a:g} {sign} {b:g} is not a real number up to {plain_number(most)}."


def too_big(text: str, most: float) -> str:
    return f"{short(text)} is too large. The maximum is {plain_number(most)}."


def too_large(count: int, most: int) -> str:
    return f"this tensor would have {count} elements, but at most {most} are allowed."


def too_many_tensors(most: int) -> str:
    return f"too many leaf tensors: at most {most} are allowed."


def too_many_steps(most: int) -> str:
    return f"too many operations: at most {most} are allowed."


def wrong_seed(shape: tuple[int, ...], result: tuple[int, ...]) -> str:
    return (
        f"The upstream gradient has shape {form(shape)}, but the result has shape {form(result)}. Use the shape of the "
        "result, or one number for all elements."
    )


def in_seed(message: str) -> str:
    return f"In the upstream gradient: {message}"


# Expression: results that are not finite

LOG_OF_ZERO = "the logarithm of 0 is not finite"
LOG_OF_NEGATIVE = "a negative number has no real logarithm"
ROOT_OF_NEGATIVE = "a negative number has no real square root"
ZERO_BY_ZERO = "0 / 0 is undefined"
DIVIDED_BY_ZERO = "division by 0"
FRACTIONAL_POWER = "a negative number has no real power with a fractional exponent"
OVERFLOW = "the result exceeds 3.4e38, the largest number in single precision"
HOOK_OVERFLOW = "the output of the hook exceeds 3.4e38, the largest number in single precision"


def value_not_finite(name: str, source: str, value: str, why: str) -> str:
    return f"{name} = {source} is {value}: {why}. Gradients that pass through it are not meaningful."


def gradient_not_finite(name: str, value: str, why: str) -> str:
    return f"The gradient at {name} is {value}: {why}."


def infinite_slope(source: str) -> str:
    return f"the derivative of {source} at 0 is infinite"


def slope_by_exponent(source: str) -> str:
    return f"the derivative of {source} with respect to its exponent needs the logarithm of a negative number"


short = partial(messages.short, longest=24)
"""Truncate a user-provided text."""


# Training

TRAINING_TEXT = (
    "Trains a small network on synthetic data on the server while hooks edit its gradients. The charts show the "
    "gradients after the hooks. The diagnosis reports vanishing, exploding, dead and frozen gradients."
)
TRAINING_FORM = {
    "presets": "Presets",
    "task": "Network",
    "steps": "Steps",
    "rate": "Learning rate",
    "optimizer": "Optimizer",
    "activation": "Activation",
    "depth": "Hidden layers",
    "hooks": "Gradient hooks, applied in this order (leave a field empty to disable its hook)",
    "clip_value": "Value clipping threshold",
    "clip_norm": "Norm clipping threshold",
    "scale": "Scale the gradient of",
    "factor": "Scaling factor",
    "freeze": "Freeze",
    "noise": "Gradient noise (std)",
    "no_layer": "no layer",
    "off": "off",
    "start": "Start",
    "stop": "Stop",
    "stop_name": "Stop the training",
    "queued": "Waiting in the queue…",
    "stopping": "Stopping…",
    "step": "step",
    "not_started": "Not started. Correct the marked field.",
    "changed": "The settings have changed. Press Start to run them.",
    "last_valid": "The charts show the last valid run.",
    "loss": "Loss",
    "loss_log": "Loss (log scale)",
    "norms": "Gradient norm by layer (log scale)",
    "updates": "Update-to-weight ratio by layer (log scale)",
    "heat": "Gradient histograms over time",
    "heat_layer": "Layer",
    "heat_text": "An update-to-weight ratio of about 0.001 is typical. Each column of the histograms is one step. "
    "Brighter bins contain more gradient values of the layer.",
    "diagnosis": "Diagnosis",
    "healthy": "No findings so far.",
    "read": "Hover over a chart (or use the arrow keys) to read values.",
}
TASKS = [
    ("line", "Linear regression"),
    ("mlp", "Small MLP, spiral"),
    ("cnn", "Small CNN, shapes"),
]
ACTIVATIONS = [("relu", "ReLU"), ("tanh", "tanh"), ("sigmoid", "sigmoid")]
OPTIMIZERS = [("sgd", "SGD"), ("adam", "Adam")]
PRESETS = {
    "mlp": "MLP on a spiral",
    "line": "Linear regression",
    "cnn": "CNN on shapes",
    "vanishing": "Eight sigmoid layers",
    "exploding": "Learning rate too high",
    "clipped": "High learning rate, clipped by norm",
    "frozen": "First layer frozen, noise on the others",
}
RUN_BROKEN = "The run failed with an internal error. Press Start to try again."


def example_line(steps: int, loss: float) -> str:
    """Return the status of the stored run."""
    return f"Example: trained for {steps} steps · loss {loss:.4g}"


def training_line(step: int, steps: int, seconds: float, loss: float, end: str) -> str:
    """Return the line above the charts."""
    shown = f" · loss {loss:.4g}" if math.isfinite(loss) else ""
    if end == "broken":
        return f"Diverged at step {step}: the loss is not finite."
    how = {
        "": f"Step {step} of {steps}",
        "done": f"Trained for {steps} steps",
        "stopped": f"Stopped after {step} of {steps} steps",
        "time": f"Time limit reached after {step} of {steps} steps",
    }[end]
    return f"{how} · {seconds:.1f} s{shown}"


def no_layer(layer: str, layers: Sequence[str]) -> str:
    """Return the message for an unknown layer."""
    return f"Unknown layer “{short(layer)}”. Available: {', '.join(layers)}."


def out_of_range(name: str, low: float, high: float, *, whole: bool, optional: bool) -> str:
    """Return the message for an invalid number of the form."""
    what = "an integer" if whole else "a number"
    off = ", or empty to disable the hook" if optional else ""
    return f"{TRAINING_FORM[name]} must be {what} from {plain_number(low)} to {plain_number(high)}{off}."


# Image

DEPTH_FORM = {
    "text": "The gradient of the selected class score with respect to the output of every layer, for the selected "
    "image. Gradient-based class-activation maps weight the channels of a layer by this gradient.",
    "title": "Gradient norm at each layer output, in call order (log scale)",
    "legend": "Stages are highlighted and labeled. A dashed red bar is a layer with a vanished gradient.",
    "read": "Hover over a bar (or use the arrow keys) to read its values.",
}
MOST_NAMES = 4


def depth_line(target: str, model: str, count: int) -> str:
    """Return the line above the bars."""
    return f"Score of {target} in {model}: {count} layers."


def depth_verdict(vanished: Sequence[str], extremes: tuple[str, float, str, float]) -> str:
    """Return what the norms mean for class-activation maps; `extremes` has the largest and the smallest norm."""
    largest, high, smallest, low = extremes
    if vanished:
        names = ", ".join(vanished[:MOST_NAMES])
        more = f" and {len(vanished) - MOST_NAMES} more" if len(vanished) > MOST_NAMES else ""
        return (
            f"The gradient vanishes at {names}{more}, so class-activation maps there are not meaningful. "
            "Choose a layer with a solid bar."
        )
    return (
        f"The gradient reaches every layer, with norms from {low:.3g} at {smallest} to {high:.3g} at {largest}. A "
        "class-activation map may still be too small to interpret; its verdict on Explain says so."
    )


def depth_read(layer: Any, norm: float, zeros: float) -> str:
    """Return the values of one bar."""
    height, width = layer.grid
    stage = ", stage" if layer.stage else ""
    return f"{layer.name} · {layer.kind}, {height} × {width}{stage}: norm {norm:.3g}, {100 * zeros:.0f}% exact zeros"
