"""How scores become probabilities: detected from the network, given by the caller, and used by every report of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import explainers
from explainers import Explanation, LogProbability, Probability, evaluate, explain
from explainers.errors import BadOption, BadTarget
from explainers.probabilities import declared
from tests.support.nets import plain, random_images

IMAGES = random_images(2)
BINARY, SEVERAL = 1, 5


class Then(nn.Module):
    """A network followed by a function of its scores."""

    def __init__(self, function: Callable[[Tensor], Tensor], classes: int = SEVERAL) -> None:
        super().__init__()
        self.net, self.function = plain(classes=classes), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.net(x))


class Configured(nn.Module):
    """A classifier of transformers, as far as its configuration and output matter."""

    def __init__(self, problem_type: str | None, classes: int = SEVERAL) -> None:
        super().__init__()
        self.net = plain(classes=classes)
        self.config = SimpleNamespace(problem_type=problem_type, num_labels=classes)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.net(x))


def of(module: nn.Module, classes: int = SEVERAL) -> nn.Module:
    return nn.Sequential(*plain(classes=classes).children(), module)


def logits(classes: int = SEVERAL) -> Tensor:
    return plain(classes=classes)(IMAGES).detach()


CASES: dict[str, tuple[Callable[[], nn.Module], str, Callable[[], Tensor]]] = {
    "logits": (lambda: plain(classes=SEVERAL), "softmax", lambda: logits().softmax(1)),
    "nn.Softmax": (lambda: of(nn.Softmax(1)), "identity", lambda: logits().softmax(1)),
    "F.softmax": (lambda: Then(lambda y: F.softmax(y, 1)), "identity", lambda: logits().softmax(1)),
    "log-softmax": (lambda: of(nn.LogSoftmax(1)), "softmax", lambda: logits().softmax(1)),
    "nn.Sigmoid": (lambda: of(nn.Sigmoid()), "identity", lambda: logits().sigmoid()),
    "in-place sigmoid": (lambda: Then(torch.Tensor.sigmoid_), "identity", lambda: logits().sigmoid()),
    "log-sigmoid": (lambda: of(nn.LogSigmoid()), "log", lambda: logits().sigmoid()),
    "one logit": (lambda: plain(classes=BINARY), "sigmoid", lambda: logits(BINARY).sigmoid()),
    "one sigmoid": (lambda: of(nn.Sigmoid(), BINARY), "identity", lambda: logits(BINARY).sigmoid()),
    "two columns of one sigmoid": (
        lambda: Then(lambda y: torch.cat([y.sigmoid(), 1 - y.sigmoid()], 1), BINARY),
        "identity",
        lambda: torch.cat([logits(BINARY).sigmoid(), 1 - logits(BINARY).sigmoid()], 1),
    ),
    "without background": (lambda: Then(lambda y: y.softmax(1)[:, 1:]), "identity", lambda: logits().softmax(1)[:, 1:]),
    "mean of two": (
        lambda: Then(lambda y: (y.softmax(1) + (2 * y).softmax(1)) / 2),
        "identity",
        lambda: (logits().softmax(1) + (2 * logits()).softmax(1)) / 2,
    ),
    "multi-label by configuration": (
        lambda: Configured("multi_label_classification"), "sigmoid", lambda: logits().sigmoid(),
    ),
    "classes by configuration": (
        lambda: Configured("single_label_classification"), "softmax", lambda: logits().softmax(1),
    ),
    # A gate is not the end; the logits happen to be between 0 and 1.
    "gate": (lambda: Then(lambda y: y * y.sigmoid()), "softmax", lambda: (logits() * logits().sigmoid()).softmax(1)),
    "logits near 1 / 5": (
        lambda: Then(lambda y: 0.2 + 1e-3 * y), "softmax", lambda: (0.2 + 1e-3 * logits()).softmax(1),
    ),
    "no configuration": (lambda: Configured(None), "softmax", lambda: logits().softmax(1)),
}  # fmt: skip


def codes(explanation: Explanation) -> set[str]:
    return {finding.code for row in explanation.findings for finding in row}


@pytest.mark.parametrize("case", CASES)
def test_explanations_metrics_and_targets_use_the_probability_that_the_network_means(case: str) -> None:
    build, score, expect = CASES[case]
    model, expected = build(), expect()
    found = explain("saliency", model, IMAGES, 0, compare=False)
    assert found.score == score and not codes(found) & {"unclear_scores", "probability_scores"}
    assert found.probabilities is not None
    torch.testing.assert_close(found.probabilities, expected)
    assert [row["probability"] for row in found.statistics] == pytest.approx(expected[:, 0].tolist())

    curve = evaluate(model, IMAGES, IMAGES.abs().sum(1), target=0, metrics="deletion", steps=3, controls=False)
    torch.testing.assert_close(curve.curves["deletion"][:, 0], expected[:, 0])
    word = {"softmax": "softmax", "sigmoid": "sigmoid"}.get(score, "output")
    assert curve.options["score"] == score and curve.unit("deletion") == f"mean {word} probability"

    for target, wanted in (
        (Probability(0), expected[:, 0]),
        (explainers.Sum(LogProbability([0, 0])), expected[:, 0].log()),
    ):
        found = explain("saliency", model, IMAGES, target, compare=False)
        assert [row["target_score"] for row in found.statistics] == pytest.approx(wanted.tolist()), target


def test_the_gradient_of_a_probability_is_that_of_the_output() -> None:
    """Oracle: autograd through the output itself."""
    model = of(nn.Softmax(1))
    x = IMAGES.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(x)[:, 2].sum(), x)
    torch.testing.assert_close(explainers.saliency(model, IMAGES, Probability(2)), expected)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "logit"])
def test_the_caller_decides(score: str, tmp_path: Path) -> None:
    model = plain(classes=SEVERAL)
    found = explain("saliency", model, IMAGES, 1, score=score, compare=False)
    y = logits()

    assert found.score == score and declared() is None
    found.save(str(tmp_path / "one.npz"))
    assert Explanation.load(str(tmp_path / "one.npz")).score == score
    expected = {"softmax": y.softmax(1), "sigmoid": y.sigmoid(), "logit": None}[score]
    if expected is None:
        assert found.probabilities is None and "probability" not in found.statistics[0]
    else:
        assert found.statistics[1]["probability"] == pytest.approx(float(expected[1, 1]))
    curve = evaluate(model, IMAGES, found, metrics="insertion", steps=3, controls=False)
    assert curve.options["score"] == score, "that of the explanation"
    torch.testing.assert_close(curve.curves["insertion"][:, -1], (y if expected is None else expected)[:, 1])


@pytest.mark.parametrize(
    ("method", "target", "options"),
    [("shapley_cam", 1, {"score": "probability"}), ("sess", Probability(1), {"scales": 2}), ("sess", 1, {"scales": 2})],
)
def test_methods_with_probabilities_do_not_convert_twice(method: str, target: object, options: dict) -> None:
    """Oracle: the map of the probability of the logits; the weights of SESS are probabilities."""
    inner = plain(classes=SEVERAL)
    function = explainers.METHODS[method].function
    probability = Probability(1) if method == "sess" else 1
    expected = function(inner, IMAGES, probability, layer="relu2", **options)
    torch.testing.assert_close(
        function(Then(lambda y: y.softmax(1)), IMAGES, target, layer="net.relu2", **options), expected
    )


def test_the_option_of_a_method_with_that_name_keeps_its_values() -> None:
    """ShapleyCAM has an option `score` of its own."""
    for given, own, kind in (("logit", "logit", "softmax"), ("sigmoid", "rest", "sigmoid")):
        model = plain(classes=SEVERAL)
        found = explain("shapley_cam", model, IMAGES, 1, layer="relu2", score=given, compare=False)
        assert found.options["score"] == own and found.score == kind


# Values alone


@pytest.mark.parametrize("count", [1, 4])
def test_rows_that_sum_to_one_prove_it_where_operations_do_not(count: int) -> None:
    def by_hand(y: Tensor) -> Tensor:
        return y.exp() / y.exp().sum(1, keepdim=True)

    found = explain("saliency", Then(by_hand), random_images(count), compare=False)
    assert found.score == "identity" and "probability_scores" in codes(found)


def test_other_values_between_0_and_1_are_reported() -> None:
    """A sigmoid written by hand, and a sigmoid with another range, which is no probability."""
    for function in (lambda y: 1 / (1 + (-y).exp()), lambda y: 0.9 * y.sigmoid()):
        found = explain("saliency", Then(function), IMAGES, compare=False)
        assert found.score == "softmax" and "unclear_scores" in codes(found)
    found = explain("saliency", Then(lambda y: 1 / (1 + (-y).exp())), IMAGES, score="identity", compare=False)
    assert found.score == "identity" and not codes(found) & {"unclear_scores"}


def test_traced_networks_have_only_values() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        softmax, sigmoid = (torch.jit.trace(of(end).eval(), IMAGES) for end in (nn.Softmax(1), nn.Sigmoid()))
    found = explain("saliency", softmax, IMAGES, compare=False)
    assert found.score == "identity" and "probability_scores" in codes(found)
    found = explain("saliency", sigmoid, IMAGES, compare=False)
    assert found.score == "softmax" and "unclear_scores" in codes(found)
    assert explain("saliency", sigmoid, IMAGES, score="identity", compare=False).score == "identity"


# Wrong uses and findings


def test_a_score_that_does_not_fit_is_refused() -> None:
    model, large = plain(classes=SEVERAL), 4 * IMAGES
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: explain("saliency", model, large, score="identity"), BadOption, "score='identity' .* range from"),
        (lambda: evaluate(model, large, large.sum(1), score="identity"), BadOption, "score='identity' .* range from"),
        (lambda: explain("saliency", model, IMAGES, score="softmaks"), BadOption, "'softmaks' is not valid. Did you"),
        (lambda: explain("saliency", plain(classes=1), IMAGES, score="softmax"), BadOption, "Give 'sigmoid'"),
        (lambda: explain("saliency", model, IMAGES, Probability(1), score="logit"), BadTarget, r"Give Logit\(class\)"),
        (lambda: Probability(1, score="logit"), BadTarget, r"Give Logit\(class\)"),
    ]
    for call, error, words in calls:
        with pytest.raises(error, match=words):
            call()


def test_a_saturated_output_is_reported_and_logits_are_suggested() -> None:
    """The gradient vanishes inside the network, for which no other target helps."""
    model = Then(lambda y: (40 * y).softmax(1)).eval()
    found = explain("saliency", model, IMAGES[:1], compare=False)
    assert float(found.scores.max()) > 0.999 and found.score == "identity"
    (finding,) = [each for each in found.findings[0] if each.code == "saturated"]
    assert "output of the network" in finding.sentence and "forward=" in finding.sentence and not finding.remedy
    assert "saturated" not in codes(explain("occlusion", model, IMAGES[:1], compare=False)), "it needs no gradient"
    logits = explain("saliency", model, IMAGES[:1], forward=model.net, compare=False)
    assert logits.score == "softmax" and "saturated" not in codes(logits)


def test_regression_has_no_unlikely_class() -> None:
    model = Then(lambda y: 30 * y, 9)
    worst = int(model(IMAGES[:1]).argmin())
    assert "unlikely_target" in codes(explain("saliency", model, IMAGES[:1], worst, compare=False))
    assert "unlikely_target" not in codes(explain("saliency", model, IMAGES[:1], worst, score="logit", compare=False))
    assert explain("saliency", Configured("regression"), IMAGES, 0, compare=False).score == "logit"


def test_targets_show_a_score_that_is_not_the_default() -> None:
    assert repr(Probability(3)) == "Probability(classes=3)"
    assert repr(Probability(3, "sigmoid")) == "Probability(classes=3, score='sigmoid')"
    assert copy.deepcopy(Probability(3, "sigmoid")) == Probability(3, "sigmoid") != Probability(3)
    y = logits()
    torch.testing.assert_close(Probability([1, 2], "sigmoid").rows([1])(y[1:]), y[1:, 2].sigmoid())
    assert float(Probability(0)(logits(BINARY))[0]) == pytest.approx(float(logits(BINARY)[0].sigmoid()))
