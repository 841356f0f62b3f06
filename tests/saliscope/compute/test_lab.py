"""The gradient lab: expressions compared with torch, generated code, wrong forms, training runs, and gradient norms."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn

import explainers
from saliscope import limits
from saliscope.compute import network_calls
from saliscope.compute.jobs import runs
from saliscope.compute.lab import engine as lab_engine
from saliscope.compute.lab import experiments, expressions, presets
from saliscope.compute.lab import image as lab_image
from saliscope.compute.lab import messages as lab_messages
from saliscope.compute.lab import training as lab_training
from saliscope.compute.lab.experiments import GALLERY, Experiment
from saliscope.compute.lab.expressions import Refusal
from saliscope.compute.lab.presets import PRESETS, Training
from saliscope.compute.lab.training import Curves
from saliscope.errors import Refused
from saliscope.page.lab import view as lab_view

X = [[1.0, 2.0], [3.0, 4.0]]
SAME_AS_PYTHON = (
    *("mean(x^2 + 1)", "sum(x * x / 2)", "-x^2", "(-x)^2 - 3", "2^x^2 / 100", "x - 1 - 2 - x/2/4", "x ** -2", "--x"),
    *("exp(-x) * log(x) + sqrt(x)", "tanh(x/4) + sigmoid(x - 2)", "relu(x - 2.5)", "(-2)^3 * x"),
)
OTHERS = {
    "x * (10, 20)": lambda x: x * torch.tensor([10.0, 20.0]),
    "[[-1], [+2]] + x": lambda x: torch.tensor([[-1.0], [2.0]]) + x,
    "3·x² − 1.5e1": lambda x: 3 * x**2 - 15,
    "\n\ny = x * x\nz = y * x ; y + z * y": lambda x: x * x + x * x * x * (x * x),
}


def outcome(experiment: Experiment) -> lab_engine.Outcome:
    return lab_engine.run(experiments.make_plan(experiment))


def test_values_and_gradients_equal_torch() -> None:
    """Oracle: the same expression in Python."""
    functions = {name: getattr(torch, name) for name in expressions.FUNCTIONS}
    for program in (*SAME_AS_PYTHON, *OTHERS):
        x = torch.tensor(X, requires_grad=True)
        own = OTHERS.get(program)
        expected = own(x) if own else eval(program.replace("^", "**"), {**functions, "x": x})
        expected.backward(torch.ones_like(expected))
        found = outcome(Experiment(f"x = [[1, 2], [3, 4]]; {program}"))
        torch.testing.assert_close(found.values[found.plan.result.name], expected.detach(), msg=program)
        torch.testing.assert_close(found.hooked.tensors["x"], x.grad, msg=program)


KNOWN = {
    "double": ({"v": [2, 4, 6]}, {"v": [1, 2, 3]}),
    "square": ({"v": [28, 64, 108]}, None),
    "chain": ({"y": [[1, 2.5], [5, 8.5]], "x": [[2, 10], [30, 68]]}, None),
    "mean": ({"x": [20200910] * 4}, {"x": [1] * 4}),
    "product": ({"a": 15, "x": 55, "y": 39}, None),
    "squared": ({"v": [1, 1, 4]}, {"v": [2, 2, 5]}),
    "shared": ({"m1": 10, "m2": 5, "m3": 2, "y": 1, "x2": 1, "x1": 5}, None),
}


def test_the_gallery_has_the_expected_gradients() -> None:
    assert list(lab_messages.EXPERIMENTS) == list(GALLERY) == list(KNOWN), "and a description of each"
    for name, (first, second) in KNOWN.items():
        found = outcome(GALLERY[name])
        for tensor, gradient in first.items():
            assert found.hooked.tensors[tensor].tolist() == gradient, name
        assert (found.again is None) == (second is None), name
        for tensor, gradient in (second or {}).items():
            assert found.again.tensors[tensor].tolist() == gradient, name


VARIANTS = [
    *GALLERY.values(),
    *(
        replace(GALLERY["chain"], hook=hook, amount=amount, where=where, again=again)
        for hook, amount in [("scale", -0.5), ("clip_value", 2.0), ("clip_norm", 3.0), ("zeros", 1.0), ("negate", 1.0)]
        for where, again in [("x", ""), ("y", "keep"), ("t2", "removed")]
    ),
    Experiment("x = (1, -2)\ny = (-3)^2 * x^3 / -2 + 2^x\nu = x * 2\n-y - 1", "y", "square", 1.0, "(1, 0.5)"),
    Experiment("x = 2\ny = 3\nz = (1, 2)\nsum(z * x + relu(y - z) * exp(z/9))", "z", "scale", 1e6, "7", "keep", "2"),
    Experiment("a = 1; b = 2; b * (1, 2, 3)", "a", "scale", 3.0),
]


def test_the_generated_code_and_the_edges_have_the_same_gradients() -> None:
    """Oracles: the code, which imports only torch; and the chain rule: a tensor's gradient is the sum over its uses."""
    for experiment in VARIANTS:
        plan = experiments.make_plan(experiment)
        found, code = lab_engine.run(plan), experiments.code(plan)
        imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert [ast.unparse(node) for node in imports] == ["import torch"]
        scope: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, scope)  # generated from names and numbers of the grammar
        shown = (found.again or found.hooked).tensors
        assert set(shown) == {step.name for step in plan.steps}
        for step in plan.steps:
            actual = scope[step.name].grad if step.value is not None else scope["grads"].get(step.name)
            assert (actual is None) == (shown[step.name] is None), step.name
            assert actual is None or torch.equal(actual, shown[step.name]), (experiment, step.name)
            assert torch.equal(scope[step.name].detach(), found.values[step.name]), (experiment, step.name)
            parts = [g for (source, _, _), g in found.without.edges.items() if source == step.name]
            if parts:
                torch.testing.assert_close(sum(parts), found.without.tensors[step.name], msg=str(experiment))
        assert lab_view.outcome(found)["finding"] == "", "all are finite"


REFUSED = {
    "is too large. The maximum is 1e12.": ["x = [[1, 2], [3, -1e999]]"],
    "is not a valid name": ["torch = 1", "lambda = 1", "mean = 1"],
    "unexpected character “.”": ["x = 1; x.__class__"],
    "unexpected character": ["x = ١", "x = <img src=x>", "x = 1; __import__('os').system('true')"],
    "an unprintable character": ["x = \u202e1"],
    "unknown name “q”. Defined so far: x": ["x = 1; q * 2"],
    "nested too deeply": ["x = 1; " + each for each in ("-" * 300 + "x", "(" * 30 + "x" + ")" * 30, "2^" * 100 + "x")],
    "The expression is empty": [""],
    "Line 1, position 10: missing closing “)” before the end": ["x = (1, 2"],
    "Line 2, position 8: expected a number, a name or a bracket, got the end.": ["x = 1\ny = x +"],
    "Line 2, position 7: missing operator between 2 and x": ["x = 1\ny = 2 x"],
    "shapes 2 and 3 cannot be broadcast": ["x = (1, 2); y = (1, 2, 3); x * y"],
    "the same length": ["x = [[1, 2], [3]]"],
    "at most two dimensions": ["x = [[[1]]]"],
    "only numbers": ["x = (1, y)"],
    "already defined": ["x = 1; x = 2"],
    "only another name for x": ["x = 1; y = x"],
    "a constant needs a name": ["(1, 2)"],
    "NaN and ∞ are not supported": ["x = (1, NaN)", "inf = 3"],
    "is not a real number up to 1e12": ["x = 0/0", "x = (-8)^0.5", "x = 9^9^9^9"],
    "at most 3 are allowed": ["a=1;b=2;c=3;d=4"],
    "mean needs a named tensor": ["x = 1; mean(2) + x"],
    "at least one named tensor": ["x = 1; (1, 2) + (3, 4) + x"],
    "must follow a single name": ["x = 1 = 2"],
    "at most 24 are allowed": ["x = 1; x" + " + x" * 60],
    "at most 64": [
        "x = (" + "1," * 70 + "1)",
        "x = [[1],[2],[3],[4],[5],[6],[7],[8],[9]]; y = (1,2,3,4,5,6,7,8,9); x * y",
    ],
    "at most 400": ["x" * 500],
}


def test_a_syntax_error_has_a_short_message_with_its_position() -> None:
    for expected, programs in REFUSED.items():
        for program in programs:
            with pytest.raises(Refusal) as refusal:
                expressions.parse(program)
                pytest.fail(f"{program} is accepted")
            message = str(refusal.value)
            assert expected in message and message.endswith(".") and len(message) < 220
            assert message.startswith("Line ") or "characters" in message or "empty" in message, message


MALFORMED: dict[str, list[Any]] = {
    "": [None, [], {"program": 1}, {"hook": "os.system"}, {"hook": ["scale"]}, {"again": "forever"}, {"where": {}}],
    "amount": [{"hook": "scale", "amount": each} for each in ("2", None, math.nan, math.inf, True, 10**400, 2e12)],
    "second": [{"again": "keep", "second": "1e999"}],
    "seed": [{"seed": each} for each in ("(1, 2, 3)", "open('x')", "1; 2", "inf")],
    "program": [{"program": "x = inf"}],
}
MALFORMED["amount"] += [{"hook": "clip_norm", "amount": 0}, {"hook": "clip_value", "amount": -1}]
"""Forms with a wrong part by the field whose error is shown."""


def test_malformed_requests_are_refused_with_their_form_field() -> None:
    """Unused fields are not checked, and a missing tensor has a note."""
    usual = {"program": "x = (1, 2)", "hook": "record", "amount": 1.0}
    for field, wrongs in MALFORMED.items():
        for wrong in wrongs:
            with pytest.raises(Refusal) as refusal:
                experiments.make_plan(experiments.parse_form(usual | wrong if isinstance(wrong, dict) else wrong))
                pytest.fail(f"{wrong} is accepted")
            assert field in ("", refusal.value.field) and str(refusal.value).endswith("."), wrong
    plan = experiments.make_plan(experiments.parse_form(usual | {"hook": "zeros", "amount": None, "second": "?"}))
    assert plan.second is None
    plan = experiments.make_plan(Experiment("x = 1\nx * 2", "`${window.__xss=1}`", "zeros"))
    assert plan.where == "x" and "no `${window.__xss=1}`, so the hook was moved to x" in plan.notes[0]


def test_parsing_is_fast_in_the_worst_case() -> None:
    """Brackets that are vectors are parsed again at every level."""
    start = time.perf_counter()
    for text in ("(" * 15 + "1" + ",1)" * 15, "x=1;" + "(" * 14 + "x" + ",1)" * 14, "x=1;" + "x^" * 150 + "x"):
        with contextlib.suppress(Refusal):
            expressions.parse(text[: limits.EXPRESSION_LENGTH])
    assert time.perf_counter() - start < 0.5


FLOAT32 = "the result exceeds 3.4e38, the largest number in single precision"
CUBE = "x = 1e12\ny = x * x * x"
OUTPUT = "The gradient at x is ∞: the output of the hook exceeds"
NOT_FINITE: list[tuple[str | Experiment, str]] = [
    ("x = (1, 0)\ny = log(x)", "y = log(x) is −∞: the logarithm of 0 is not finite."),
    ("x = (1, -1)\ny = log(x)", "y = log(x) is NaN: a negative number has no real logarithm."),
    ("x = -4\ny = 2 * sqrt(x)", "t1 = sqrt(x) is NaN: a negative number has no real square root."),
    ("x = 100\ny = exp(x)", f"y = exp(x) is ∞: {FLOAT32}."),
    ("x = (0, 1)\ny = x / x", "y = x / x is NaN: 0 / 0 is undefined."),
    ("x = (0, 1)\ny = (2, 2) / x", "y = [2, 2] / x is ∞: division by 0."),
    ("x = (4, -4)\ny = x^0.5", "y = x ^ 0.5 is NaN: a negative number has no real power with a fractional exponent."),
    ("x = (1e12, 1e12)\ny = sum(x^3 * 300)", f"y = sum(t2) is ∞: {FLOAT32}."),
    ("x = 0\ny = sqrt(x)", "The gradient at x is ∞: the derivative of sqrt(x) at 0 is infinite."),
    ("x = 0\ny = sqrt(x) * x", "The gradient at x is NaN: the derivative of sqrt(x) at 0 is infinite."),
    ("x = (0, 4)\ny = x^0.5", "The gradient at x is ∞: the derivative of x ^ 0.5 at 0 is infinite."),
    ("x = 2\ny = (-3)^x", "The gradient at x is NaN: the derivative of -3 ^ x with respect to its exponent needs "),
    ("x = 1e-9\ny = x/1e12/1e12\nz = 1/y\nz/1e6", f"The gradient at y is −∞: {FLOAT32}."),
    (Experiment(CUBE, "y", "square", 1.0, "1e12"), OUTPUT),
]


def test_a_value_or_gradient_that_is_not_finite_is_explained() -> None:
    """The answer is valid JSON."""
    for given, expected in NOT_FINITE:
        packed = lab_view.outcome(outcome(given if isinstance(given, Experiment) else Experiment(given)))
        text = json.dumps(packed, allow_nan=False)
        assert packed["finding"].startswith(expected), packed["finding"]
        assert '"Infinity"' in text or '"-Infinity"' in text or '"NaN"' in text, given


SHORT = Training("mlp", 0.3, 12, depth=2)


def trained(training: Training, seconds: float = 20.0) -> Curves:
    with runs.start(None, seconds) as run:
        *_, last = lab_training.train(training, run)
        return last


def test_linear_regression_equals_gradient_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: gradient descent on mean (w x + b - 2x)^2, written out."""
    start, record = list[float](), explainers.record_gradients

    def record_from(network: nn.Module, **options: Any) -> Any:
        start.extend(float(each.detach()) for each in network.parameters())
        return record(network, **options)

    monkeypatch.setattr(explainers, "record_gradients", record_from)
    found = trained(replace(PRESETS["line"], steps=20))
    (w, b), x = start, torch.tensor([1.0, 2.0, 3.0])
    for step in range(20):
        error = w * x + b - 2 * x
        slope, offset = float((2 * error * x).mean()), float((2 * error).mean())
        assert found.loss[step] == pytest.approx(float((error**2).mean()), rel=1e-4)
        assert found.norms["line"][step] == pytest.approx(math.hypot(slope, offset), rel=1e-4)
        moved = 0.01 * math.hypot(slope, offset) / math.hypot(w, b)
        assert found.updates["line"][step] == pytest.approx(moved, rel=1e-3)
        w, b = w - 0.01 * slope, b - 0.01 * offset


def test_gradient_edits_act_on_the_recorded_norms() -> None:
    plain = trained(SHORT)
    clipped = trained(replace(SHORT, clip_norm=0.05))
    scaled = trained(replace(SHORT, scale="output", factor=0.5))
    noisy = trained(replace(SHORT, freeze="hidden1", scale="hidden2", factor=0.5, noise=0.1))
    cut = trained(replace(SHORT, clip_value=1e-3))

    total = [math.sqrt(sum(curve[k] ** 2 for curve in clipped.norms.values())) for k in range(12)]
    assert max(total) <= 0.05 * 1.0001 and sum(curve[0] for curve in plain.norms.values()) > 0.05
    assert scaled.norms["output"][0] == pytest.approx(0.5 * plain.norms["output"][0], rel=1e-4)
    assert scaled.norms["hidden1"][0] == pytest.approx(plain.norms["hidden1"][0], rel=1e-4)
    assert noisy.norms["hidden1"] == [0.0] * 12, "noise is added before freezing, in the order of the form"
    assert noisy.updates["hidden1"] == [0.0] * 12 and noisy.norms["output"][0] > 0.2
    assert noisy.norms["hidden2"] == pytest.approx([0.8] * 12, rel=0.3), "half the noise of 0.1 on 16 · 17 numbers"
    assert max(high for _, _, high in cut.histograms["output"]) <= 1e-3 * 1.0001


def test_every_task_learns_and_presets_show_their_phenomenon() -> None:
    """Forms and answers are small JSON."""
    assert list(PRESETS) == list(lab_messages.PRESETS)
    runs_of = {name: trained(replace(preset, steps=min(preset.steps, 60))) for name, preset in PRESETS.items()}
    runs_of |= {name: trained(PRESETS[name]) for name in ("exploding", "clipped", "vanishing")}
    for name, found in runs_of.items():
        assert presets.parse_form(json.loads(json.dumps(asdict(PRESETS[name])))) == PRESETS[name]
        assert len(json.dumps(lab_view.curves(found), allow_nan=False)) < 500_000
        assert len(found.at) <= limits.TRAINING_POINTS
    for task, _ in lab_messages.TASKS:
        found = runs_of[task]
        assert found.end == "done" and found.step == 60 and found.loss[-1] < 0.8 * found.loss[0]
    assert trained(SHORT).loss == trained(SHORT).loss, "a run is reproducible"
    codes = {name: [each.code for each in found.findings] for name, found in runs_of.items()}
    assert "exploding" in codes["exploding"] and runs_of["exploding"].end == "broken"
    assert codes["clipped"] == [] and "vanishing" in codes["vanishing"] and codes["frozen"] == ["frozen"]


def test_a_stopped_run_keeps_its_curves_and_time_is_limited() -> None:
    long = replace(SHORT, task="cnn", steps=500)
    with runs.start("somebody/training", 20.0) as run:
        going = lab_training.train(long, run)
        next(going)
        runs.stop("somebody/training")
        *_, found = going
    assert found.end == "stopped" and 0 < found.step < 500 and len(found.loss) == len(found.at) > 0
    assert trained(long, 0.2).end == "time"


def test_invalid_forms_are_refused() -> None:
    for name, values in {
        "steps": (10**9, 0, "10", True, math.nan, 10.5, None),
        "rate": (-1, math.inf, None),
        "task": ("resnet50", ["mlp"], None),
        "freeze": ("conv1", "*", {"a": 1}),
        "factor": (None,),
        "clip_norm": (0,),
        "noise": (-1, [1]),
        "scale": ("<img src=x onerror=alert(1)>",),
    }.items():
        for value in values:
            with pytest.raises(Refused) as refusal:
                presets.parse_form({name: value})
                pytest.fail(f"{name}={value} is accepted")
            assert str(refusal.value).endswith(".")


# Gradient norms of an image


def test_layer_norms_equal_autograd() -> None:
    """Oracle: gradients of the activations from autograd; their squares underflow in float32."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten())
    network, images = network.append(nn.Linear(4 * 16, 5)), torch.rand(1, 3, 8, 8)
    network[5].weight.data *= 1e-30
    a = network[0](images)
    b = a.relu()
    c = network[2](b)
    d = c.relu()
    grads = torch.autograd.grad(network[5](d.flatten(1))[0, 2], (a, b, c, d))
    found = network_calls.layer_gradients(network, images, 2, list("0123"), network_calls.norm_and_zeros)
    for name, gradient in zip("0123", grads, strict=True):
        assert float(found[name][0]) == pytest.approx(float(gradient.double().norm()), rel=1e-5, abs=0)
        assert float(found[name][1]) == pytest.approx(float((gradient == 0).float().mean()))

    layers = explainers.list_layers(network, images, spatial=True)
    depth = lab_image.Depth(None, "tench", layers, [1.0, math.nan, 1e-9, 2.0], [0.0] * 4)
    assert depth.vanished == ["1", "2"]
    message = lab_messages.depth_verdict(depth.vanished, ("3", 1.0, "0", 0.0))
    assert message.startswith("The gradient vanishes at 1, 2, so class-activation maps there are not meaningful.")

    network[5].apart = nn.Identity()  # it runs, but its output is not used
    network[0].register_forward_pre_hook(lambda _, given: (network[5].apart(given[0]), None)[1])
    norms = network_calls.layer_gradients(network, images, 2, ["5.apart"], network_calls.gradient_norm)
    assert norms == {"5.apart": 0}
