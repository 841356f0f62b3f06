"""Labels and messages of the gradient lab."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from saliscope import limits
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


BAD_FORM = "The form is incomplete. Choose an experiment to start again."


def plain_number(value: float) -> str:
    """Format a number in few characters, such as 1e-9 or −1000."""
    mantissa, _, exponent = f"{value:g}".partition("e")
    return (f"{mantissa}e{int(exponent)}" if exponent else mantissa).replace("-", "−", 1 if value < 0 else 0)


def amount_range(hook: str, low: float, high: float) -> str:
    """Return the message for an invalid number of the hook."""
    label = next(label for name, _, label in HOOKS if name == hook)
    return f"The {label} must be a number from {plain_number(low)} to {plain_number(high)}."


def too_long(length: int) -> str:
    """Return the message for a text with too many characters."""
    return f"The expression has {length} characters, but at most {limits.EXPRESSION_LENGTH} are allowed."


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
