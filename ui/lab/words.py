"""Every sentence of the gradient lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LAB = "Gradient lab"
EXPRESSION, TRAINING, PICTURE = "One expression", "A network in training", "A picture"

# One expression: what the form says

EXPRESSION_TEXT = (
    "A hook is a function that sees a gradient on its way back and may hand on another one. Choose an experiment, or "
    "write your own: a line of numbers makes a tensor, every other line is an operation, the last one is where the "
    "backward pass begins."
)
FORM = {
    "gallery": "Experiments",
    "program": "Expression",
    "grammar": "Numbers, (1, 2, 3), [[1, 2], [3, 4]], names, + - * / ^, mean sum relu exp log sqrt tanh sigmoid. "
    "Ctrl+Enter runs it.",
    "seed": "Backward with",
    "seed_hint": "ones",
    "where": "Hook on",
    "hook": "The hook",
    "amount": "by",
    "again": "Then",
    "second": "with",
    "run": "Run",
    "code": "The same in PyTorch",
    "copy": "Copy",
    "copied": "Copied",
    "by_hand": "Select and copy by hand",
    "table": "Every tensor",
    "graph": "The graph",
    "columns": ["Tensor", "Value", "Gradient without the hook", "With the hook", "After the second pass"],
    "none": "none",
    "legend": "On each edge: → the value on its way forward, ← the gradient on its way back. Blue is negative, red is "
    "positive, stronger is larger (steps of ten). A changed gradient has a frame.",
    "hooked": "hook",
    "was": "was",
    "leaf": "tensor",
}
HOOKS = [
    ("record", "record only", ""),
    ("scale", "multiply by a factor", "factor"),
    ("clip_value", "clip each value", "limit"),
    ("clip_norm", "clip the norm", "limit"),
    ("zero", "set to zero", ""),
    ("square", "square", ""),
    ("negate", "turn the sign", ""),
]
AGAIN = [
    ("", "nothing more"),
    ("keep", "a second backward pass, gradients add up"),
    ("removed", "hook removed, gradients zeroed, a second pass"),
]

EXPERIMENTS = {
    "double": (
        "v doubled",
        "The hook multiplies what arrives: (1, 2, 3) becomes v.grad = (2, 4, 6). After removing it, (1, 2, 3) again.",
    ),
    "square": ("y = 2v²", "dy/dv = 4v = (28, 32, 36); backward with (1, 2, 3) weighs it: v.grad = (28, 64, 108)."),
    "chain": (
        "x² + 1, then mean of squares",
        "y is no leaf, yet a hook on it fires: ∂z/∂y = y/2 = [[1, 2.5], [5, 8.5]]. x.grad = x³ + x. "
        "y.grad itself stays None.",
    ),
    "mean": (
        "mean(x²) × 20200910",
        "Each entry of 2x/4 is 1, and the hook makes it 20200910. After removing the hook and zeroing: 1 again.",
    ),
    "product": (
        "(x + y) · xy",
        "∂c/∂a = b = 15 is recorded at a; a.grad stays None, only leaves keep a gradient. x.grad = 55, y.grad = 39.",
    ),
    "squared": (
        "Squared, and adding up",
        "The hook squares (1, 1, 2) to (1, 1, 4). A second pass with (1, 1, 1) adds to it: (2, 2, 5).",
    ),
    "shared": (
        "m1·m2 + x1·m3",
        "x1 is used twice, so two gradients meet in it: 1 by the sum and 4 by the product, 5 in all.",
    ),
}


def ran(hook: str, where: str, result: str) -> str:
    """The line above a result."""
    how = next(label for name, label, _ in HOOKS if name == hook)
    return f"Backward from {result}; the hook on {where}: {how}."


def moved(name: str, instead: str) -> str:
    """When the tensor that was hooked is no longer written."""
    return f"There is no {name} any more, so the hook sits on {instead}."


# One expression: what is refused

ONLY_NUMBERS = "only numbers can stand here, as in (1, 2, 3) or [[1, 2], [3, 4]]."
NOTHING_WRITTEN = "Nothing is written yet; try x = (1, 2, 3) and below it mean(x^2)."
NO_TENSOR = "No tensor has a value; begin with a line such as x = (1, 2, 3)."
NAMELESS = "these are numbers alone; give them a name, as in x = (1, 2, 3)."
TOO_NESTED = "tensors have at most two dimensions here: rows of numbers."
RAGGED = "all rows of a tensor must have the same length."
TOO_DEEP = "this is nested too deeply; give inner parts a name on a line of their own."
TWO_VECTORS = "an operation needs at least one named tensor; name these numbers first."
BAD_FORM = "The form arrived incomplete; choose an experiment to start again."
NOT_FINITE = "That number is not one to multiply or clip by; write one between −1e12 and 1e12."
LIMIT_POSITIVE = "A limit for clipping must be above zero."


def at(line: int, position: int, why: str) -> str:
    """A refusal with its place."""
    return f"Line {line}, position {position}: {why}"


def too_long(length: int, most: int) -> str:
    return f"The expression has {length} characters; at most {most} are read."


def unknown_sign(sign: str) -> str:
    shown = f"“{sign}”" if sign.isprintable() else "a sign that cannot be shown"
    return f"{shown} has no meaning here."


def unexpected(text: str) -> str:
    if text == "=":
        return "only one name can stand before “=”, at the beginning of a line."
    found = {"": "the end", "\n": "the end of the line"}.get(text, f"“{short(text)}”")
    return f"{found} is where a number, a name or a bracket should be."


def bad_name(name: str) -> str:
    return f"“{short(name)}” cannot be a name; take up to twelve letters and digits, such as x or m1."


def twice(name: str) -> str:
    return f"{short(name)} is already there; every tensor has one value, so take another name."


def unknown_name(name: str, known: Sequence[str], functions: Sequence[str]) -> str:
    there = f"so far there is {', '.join(known)}" if known else "give it a value on a line above"
    return f"there is no “{short(name)}”; {there}; functions are {', '.join(functions)}."


def needs_bracket(function: str) -> str:
    return f"{function} needs brackets: {function}(x)."


def no_tensor_in(function: str) -> str:
    return f"{function} needs a named tensor in its brackets."


def missing_times(left: str, right: str) -> str:
    return f"put an operation between {short(left)} and {short(right)}, for example {short(left)} * {short(right)}."


def not_closed(sign: str, found: str) -> str:
    there = {"": "the end", "\n": "the end of the line"}.get(found, f"“{short(found)}”")
    return f"a closing “{sign}” is missing before {there}."


def same_tensor(name: str) -> str:
    return f"this is only another name for {short(name)}; write an operation."


def shapes(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    return f"shapes {form(a)} and {form(b)} do not fit together."


def form(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "of one number"


def no_number(a: float, sign: str, b: float) -> str:
    return f"{a:g} {sign} {b:g} is no number that can be used here."


def too_big(most: float) -> str:
    return f"numbers go up to {most:g}."


def too_large(count: int, most: int) -> str:
    return f"this would be a tensor of {count} numbers; at most {most} are drawn."


def too_many_tensors(most: int) -> str:
    return f"there are already {most} tensors, and more do not fit into the graph."


def too_many_steps(most: int) -> str:
    return f"there are already {most} operations, and more do not fit into the graph."


def wrong_seed(found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    return f"Backward with numbers of shape {form(found)} does not fit the result, which is {form(wanted)}."


def in_seed(sentence: str) -> str:
    return f"In “backward with”: {sentence}"


def short(text: Any, longest: int = 24) -> str:
    """A visitor's word, cut to what a sentence holds."""
    text = " ".join(str(text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


# A network in training

TRAINING_TEXT = (
    "A small network trains on the server, on data made by a formula, while hooks act on its gradients. The charts "
    "show what the hooks leave, the sentences above them what is wrong with the run."
)
TRAINING_FORM = {
    "presets": "Runs",
    "task": "Network",
    "steps": "Steps",
    "rate": "Learning rate",
    "optimiser": "Optimiser",
    "activation": "Activation",
    "depth": "Hidden layers",
    "hooks": "Hooks on the gradients, in this order; an empty field is no hook",
    "clip_value": "Clip each value at",
    "clip_norm": "Clip the norm at",
    "scale": "Multiply the gradient of",
    "factor": "by",
    "freeze": "Freeze",
    "noise": "Add noise of deviation",
    "no_layer": "no layer",
    "off": "off",
    "start": "Start",
    "stop": "Stop",
    "queued": "Waiting for a free place…",
    "step": "step",
    "loss": "Loss",
    "norms": "Gradient norm of each layer (log scale)",
    "updates": "Update over weight, by layer (log scale; about 0.001 is usual)",
    "heat": "Gradient values over time",
    "heat_layer": "Layer",
    "heat_text": "Each column is the histogram of one step, brighter where more of the layer's weights lie.",
    "diagnosis": "Diagnosis",
    "healthy": "Nothing wrong so far.",
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
    "exploding": "Rate too high",
    "clipped": "The same, clipped",
    "frozen": "First layer frozen, with noise",
}
RUN_BROKEN = "An error ended this run. Start it again."


def training_line(step: int, steps: int, seconds: float, loss: float, end: str) -> str:
    """The line above the charts."""
    shown = f"loss {loss:.4g}"
    if end == "broken":
        return f"Ended in step {step}: the loss is no longer a number."
    how = {
        "": f"Step {step} of {steps}",
        "done": f"Trained {steps} steps",
        "stopped": f"Stopped after {step} of {steps} steps",
        "time": f"Out of time after {step} of {steps} steps",
    }[end]
    return f"{how} · {seconds:.1f} s · {shown}"


def no_layer(layer: str, layers: Sequence[str]) -> str:
    return f"This network has no layer “{short(layer)}”; it has {', '.join(layers)}."


def out_of_range(name: str, low: float, high: float) -> str:
    return f"{TRAINING_FORM[name]} must be a number from {low:g} to {high:g}."


# A picture

DEPTH_FORM = {
    "text": "The gradient of the chosen class's score, looked at on its way back through every layer of the network, "
    "for the picture on the left. A class-activation map weighs a layer's channels by this gradient.",
    "title": "Gradient norm at each layer's output, in the order of the calls (log scale)",
    "legend": "Stages stand out and are named; a dashed red bar is a layer that no gradient reaches.",
    "read": "Point at a bar, or use the arrow keys, to read its layer.",
}
MOST_NAMES = 4


def depth_line(target: str, model: str, count: int) -> str:
    """The line above the bars."""
    return f"Score of {target} in {model}: {count} layers."


def depth_verdict(vanished: Sequence[str], extremes: tuple[str, float, str, float]) -> str:
    """What the bars say about maps."""
    largest, high, smallest, low = extremes
    if vanished:
        names = ", ".join(vanished[:MOST_NAMES])
        more = f" and {len(vanished) - MOST_NAMES} more" if len(vanished) > MOST_NAMES else ""
        return (
            f"The gradient vanishes at {names}{more}: a class-activation map there means nothing. "
            "Choose a layer whose bar stands."
        )
    return (
        f"The gradient reaches every layer, from {low:.3g} at {smallest} to {high:.3g} at {largest}: "
        "a class-activation map has something to weigh by at each of them."
    )


def depth_read(layer: Any, norm: float, zeros: float) -> str:
    """One bar in words."""
    height, width = layer.grid
    stage = ", stage" if layer.stage else ""
    return f"{layer.name} · {layer.kind}, {height} × {width}{stage}: norm {norm:.3g}, {100 * zeros:.0f}% exact zeros"
