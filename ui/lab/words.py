"""Every sentence of the gradient lab."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LAB = "Gradient lab"
EXPRESSION, TRAINING, PICTURE = "One expression", "A network in training", "A picture"

# One expression: what the form says

EXPRESSION_TEXT = (
    "A tensor hook is a function that is called with a gradient in the backward pass; what it returns replaces the "
    "gradient. Choose an experiment, or write your own: a line of numbers makes a leaf tensor, every other line is an "
    "operation, and the backward pass begins at the last one."
)
FORM = {
    "gallery": "Experiments",
    "program": "Expression",
    "grammar": "Numbers, (1, 2, 3), [[1, 2], [3, 4]], names, + - * / ^, mean sum relu exp log sqrt tanh sigmoid. "
    "Ctrl+Enter runs it.",
    "seed": "Upstream gradient",
    "seed_hint": "ones",
    "where": "Hook on",
    "hook": "The hook",
    "amount": "by",
    "again": "Second pass",
    "second": "its upstream gradient",
    "run": "Run",
    "code": "The same in PyTorch",
    "copy": "Copy",
    "copied": "Copied",
    "by_hand": "Select and copy by hand",
    "table": "Every tensor",
    "graph": "The graph",
    "columns": ["Tensor", "Value", "Gradient without the hook", "With the hook", "After the second pass"],
    "none": "none",
    "legend": "On each edge: → the value (forward), ← the gradient (backward). Blue is negative, red is positive, "
    "opacity is the magnitude on a log scale. A changed gradient has a frame.",
    "hooked": "hook",
    "was": "was",
    "leaf": "tensor",
    "not_run": "Not run: correct the marked field.",
    "changed": "The expression has changed since; Run computes it.",
    "last_valid": "The result below is the last valid one.",
}
HOOKS = [
    ("record", "record only", ""),
    ("scale", "scale by a factor", "factor"),
    ("clip_value", "clip by value", "threshold"),
    ("clip_norm", "clip by norm", "threshold"),
    ("zero", "set to zero", ""),
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
        "y is not a leaf, yet a hook on it is called: ∂z/∂y = y/2 = [[1, 2.5], [5, 8.5]]. x.grad = x³ + x; "
        "y.grad stays None.",
    ),
    "mean": (
        "mean(x²) × 20200910",
        "∂z/∂x = 2x/4 = 1 in each entry; the hook scales it to 20200910. After removing the hook and resetting "
        "x.grad: 1.",
    ),
    "product": (
        "(x + y) · xy",
        "∂c/∂a = b = 15 is recorded at a; a.grad stays None, as autograd fills .grad of leaves only. x.grad = 55, "
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
    """The line above a result."""
    action = next(label for name, label, _ in HOOKS if name == hook)
    return f"Backward pass from {result}; hook on {where}: {action}."


def moved(name: str, instead: str) -> str:
    """When the hooked tensor is no longer in the expression."""
    return f"The expression has no {name}, so the hook is on {instead}."


# One expression: what is refused

ONLY_NUMBERS = "only numbers can stand here, as in (1, 2, 3) or [[1, 2], [3, 4]]."
NOTHING_TO_MEASURE = (
    "The network finds nothing in this picture, so there is no score to follow; choose another picture."
)
NOTHING_WRITTEN = "The expression is empty; try x = (1, 2, 3) and below it mean(x^2)."
NO_TENSOR = "There is no leaf tensor; begin with a line such as x = (1, 2, 3)."
NAMELESS = "a constant is no operation; give it a name, as in x = (1, 2, 3)."
TOO_NESTED = "tensors have at most two dimensions here: rows of numbers."
RAGGED = "all rows of a tensor must have the same length."
TOO_DEEP = "this is nested too deeply; give inner expressions a name on a line of their own."
TWO_VECTORS = "an operation needs at least one named tensor; name one of these constants."
BAD_FORM = "The form arrived incomplete; choose an experiment to start again."
NAN_OR_INFINITY = "NaN and ∞ cannot be entered; write a number up to 1e12."


def plain_number(value: float) -> str:
    """A number in few characters: 1e-9, −1000."""
    mantissa, _, exponent = f"{value:g}".partition("e")
    return (f"{mantissa}e{int(exponent)}" if exponent else mantissa).replace("-", "−", 1 if value < 0 else 0)


def amount_range(hook: str, low: float, high: float) -> str:
    """What the hook's number must be."""
    label = next(label for name, _, label in HOOKS if name == hook)
    return f"The {label} must be a number from {plain_number(low)} to {plain_number(high)}."


def at(line: int, position: int, why: str) -> str:
    """A refusal with its place."""
    return f"Line {line}, position {position}: {why}"


def too_long(length: int, most: int) -> str:
    return f"The expression has {length} characters; at most {most} are read."


def unknown_sign(sign: str) -> str:
    shown = f"“{sign}”" if sign.isprintable() else "an unprintable character"
    return f"{shown} has no meaning here."


def unexpected(text: str) -> str:
    if text == "=":
        return "only one name can stand before “=”, at the beginning of a line."
    return f"a number, a name or a bracket is expected here, not {_token(text)}."


def bad_name(name: str) -> str:
    return f"“{short(name)}” cannot be a name; use up to twelve letters and digits, such as x or m1."


def twice(name: str) -> str:
    return f"{short(name)} is already defined; use another name."


def unknown_name(name: str, known: Sequence[str], functions: Sequence[str]) -> str:
    defined = f"defined so far: {', '.join(known)}" if known else "define it on a line above"
    return f"there is no “{short(name)}”; {defined}; functions are {', '.join(functions)}."


def needs_bracket(function: str) -> str:
    return f"{function} needs brackets: {function}(x)."


def no_tensor_in(function: str) -> str:
    return f"{function} needs a named tensor in its brackets."


def missing_times(left: str, right: str) -> str:
    return f"put an operator between {short(left)} and {short(right)}, for example {short(left)} * {short(right)}."


def not_closed(sign: str, text: str) -> str:
    return f"a closing “{sign}” is missing before {_token(text)}."


def _token(text: str) -> str:
    return {"": "the end", "\n": "the end of the line"}.get(text, f"“{short(text)}”")


def same_tensor(name: str) -> str:
    return f"this is only another name for {short(name)}; write an operation."


def shapes(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    return f"shapes {form(a)} and {form(b)} cannot be broadcast."


def form(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "()"


def no_number(a: float, sign: str, b: float, most: float) -> str:
    return f"{a:g} {sign} {b:g} is not a real number up to {plain_number(most)}."


def too_big(text: str, most: float) -> str:
    return f"{short(text)} is too large; numbers go up to {plain_number(most)}."


def too_large(count: int, most: int) -> str:
    return f"this would be a tensor of {count} elements; at most {most} are drawn."


def too_many_tensors(most: int) -> str:
    return f"there are already {most} leaf tensors; the graph has no room for more."


def too_many_steps(most: int) -> str:
    return f"there are already {most} operations; the graph has no room for more."


def wrong_seed(shape: tuple[int, ...], result: tuple[int, ...]) -> str:
    return (
        f"The upstream gradient has shape {form(shape)}, the result {form(result)}; write the result's shape, "
        "or one number for all elements."
    )


def in_seed(sentence: str) -> str:
    return f"In the upstream gradient: {sentence}"


# One expression: results that are not finite

LOG_OF_ZERO = "the logarithm of 0 is not finite"
LOG_OF_NEGATIVE = "a negative number has no real logarithm"
ROOT_OF_NEGATIVE = "a negative number has no real square root"
ZERO_BY_ZERO = "0 / 0 has no value"
DIVIDED_BY_ZERO = "it divides by 0"
FRACTIONAL_POWER = "a negative number has no real power with a fractional exponent"
OVERFLOW = "it exceeds 3.4e38, the largest number in single precision"
HOOK_OVERFLOW = "what the hook makes of it exceeds 3.4e38, the largest number in single precision"


def value_not_finite(name: str, source: str, value: str, why: str) -> str:
    return f"{name} = {source} is {value}: {why}. Gradients that pass through it have no meaning."


def gradient_not_finite(name: str, value: str, why: str) -> str:
    return f"The gradient at {name} is {value}: {why}."


def infinite_slope(source: str) -> str:
    return f"the slope of {source} at 0 is infinite"


def slope_by_exponent(source: str) -> str:
    return f"the slope of {source} by its exponent needs the logarithm of a negative number"


def short(text: Any, longest: int = 24) -> str:
    """The visitor's text, truncated."""
    text = " ".join(str(text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


# A network in training

TRAINING_TEXT = (
    "A small network trains on the server, on synthetic data, while hooks edit its gradients. The charts show the "
    "gradients after the hooks; the diagnosis names vanishing, exploding, dead and frozen gradients."
)
TRAINING_FORM = {
    "presets": "Runs",
    "task": "Network",
    "steps": "Steps",
    "rate": "Learning rate",
    "optimiser": "Optimiser",
    "activation": "Activation",
    "depth": "Hidden layers",
    "hooks": "Gradient hooks, in this order; an empty field is no hook",
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
    "queued": "Waiting in the queue…",
    "stopping": "Stopping…",
    "step": "step",
    "not_started": "Not started: correct the marked field.",
    "changed": "The settings have changed since; Start runs them.",
    "last_valid": "The charts are of the last valid run.",
    "loss": "Loss",
    "loss_log": "Loss (log scale)",
    "norms": "Gradient norm by layer (log scale)",
    "updates": "Update-to-weight ratio by layer (log scale)",
    "heat": "Gradient histograms over time",
    "heat_layer": "Layer",
    "heat_text": "An update-to-weight ratio of about 0.001 is typical. Each column of the histograms is one step, "
    "brighter where more of the layer's gradient values lie.",
    "diagnosis": "Diagnosis",
    "healthy": "No findings so far.",
    "read": "Point at a chart, or use the arrow keys on it, to read values.",
}
TASKS = [
    ("line", "Linear regression"),
    ("mlp", "Small MLP, spiral"),
    ("cnn", "Small CNN, shapes"),
]
ACTIVATIONS = [("relu", "ReLU"), ("tanh", "tanh"), ("sigmoid", "sigmoid")]
OPTIMISERS = [("sgd", "SGD"), ("adam", "Adam")]
PRESETS = {
    "mlp": "MLP on a spiral",
    "line": "Linear regression",
    "cnn": "CNN on shapes",
    "vanishing": "Eight sigmoid layers",
    "exploding": "Learning rate too high",
    "clipped": "The same, clipped by norm",
    "frozen": "First layer frozen, noise on the others",
}
RUN_BROKEN = "An error ended this run. Start it again."


def training_line(step: int, steps: int, seconds: float, loss: float, end: str) -> str:
    """The line above the charts."""
    shown = f" · loss {loss:.4g}" if math.isfinite(loss) else ""
    if end == "broken":
        return f"Diverged in step {step}: the loss is not finite."
    how = {
        "": f"Step {step} of {steps}",
        "done": f"Trained {steps} steps",
        "stopped": f"Stopped after {step} of {steps} steps",
        "time": f"Out of time after {step} of {steps} steps",
    }[end]
    return f"{how} · {seconds:.1f} s{shown}"


def no_layer(layer: str, layers: Sequence[str]) -> str:
    return f"This network has no layer “{short(layer)}”; it has {', '.join(layers)}."


def out_of_range(name: str, low: float, high: float, *, whole: bool, optional: bool) -> str:
    """What a number of the form must be."""
    what = "a whole number" if whole else "a number"
    off = ", or empty for off" if optional else ""
    return f"{TRAINING_FORM[name]} must be {what} from {plain_number(low)} to {plain_number(high)}{off}."


# A picture

DEPTH_FORM = {
    "text": "The gradient of the chosen class's score with respect to every layer's output, for the chosen "
    "picture. Gradient-based class-activation maps weight a layer's channels by it.",
    "title": "Gradient norm at each layer's output, in call order (log scale)",
    "legend": "Stages are highlighted and named; a dashed red bar is a layer with a vanished gradient.",
    "read": "Point at a bar, or use the arrow keys, to read its layer.",
}
MOST_NAMES = 4


def depth_line(target: str, model: str, count: int) -> str:
    """The line above the bars."""
    return f"Score of {target} in {model}: {count} layers."


def depth_verdict(vanished: Sequence[str], extremes: tuple[str, float, str, float]) -> str:
    """What the norms mean for class-activation maps; `extremes`: layer and norm of the largest, then the smallest."""
    largest, high, smallest, low = extremes
    if vanished:
        names = ", ".join(vanished[:MOST_NAMES])
        more = f" and {len(vanished) - MOST_NAMES} more" if len(vanished) > MOST_NAMES else ""
        return (
            f"The gradient vanishes at {names}{more}: a class-activation map there means nothing. "
            "Choose a layer with a solid bar."
        )
    return (
        f"The gradient reaches every layer, with norms from {low:.3g} at {smallest} to {high:.3g} at {largest}: "
        "a class-activation map is meaningful at each of them."
    )


def depth_read(layer: Any, norm: float, zeros: float) -> str:
    """One bar in words."""
    height, width = layer.grid
    stage = ", stage" if layer.stage else ""
    return f"{layer.name} · {layer.kind}, {height} × {width}{stage}: norm {norm:.3g}, {100 * zeros:.0f}% exact zeros"
