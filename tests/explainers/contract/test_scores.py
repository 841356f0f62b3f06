"""How scores become probabilities: detected from the network, given by the caller, and used by every report of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import explainers
from explainers import Explanation, LogProbability, Probability, evaluate, explain
from explainers.errors import BadOption, BadTarget
from explainers.layers.profile import profile
from explainers.layers.score_kind import ending
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
    "no configuration": (lambda: Configured(None), "softmax", lambda: logits().softmax(1)),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, str, Tensor]:
    build, score, expected = CASES[request.param]
    return build(), score, expected()


def codes(explanation: Explanation) -> set[str]:
    return {finding.code for row in explanation.findings for finding in row}


def test_explain_reports_the_probability_that_the_network_means(case: tuple[nn.Module, str, Tensor]) -> None:
    model, score, expected = case
    found = explain("saliency", model, IMAGES, 0, compare=False)

    assert found.score == score and not codes(found) & {"unclear_scores", "probability_scores"}
    assert found.probabilities is not None
    torch.testing.assert_close(found.probabilities, expected)
    assert [row["probability"] for row in found.statistics] == pytest.approx(expected[:, 0].tolist())


def test_metrics_use_the_same_probability(case: tuple[nn.Module, str, Tensor]) -> None:
    model, score, expected = case
    found = evaluate(model, IMAGES, IMAGES.abs().sum(1), target=0, metrics="deletion", steps=3, controls=False)

    torch.testing.assert_close(found.curves["deletion"][:, 0], expected[:, 0])
    word = {"softmax": "softmax", "sigmoid": "sigmoid"}.get(score, "output")
    assert found.options["score"] == score and found.unit("deletion") == f"mean {word} probability"


def test_targets_do_not_convert_twice(case: tuple[nn.Module, str, Tensor]) -> None:
    model, _, expected = case
    found = explain("saliency", model, IMAGES, Probability(0), compare=False)
    assert [row["target_score"] for row in found.statistics] == pytest.approx(expected[:, 0].tolist())
    found = explain("saliency", model, IMAGES, explainers.Sum(LogProbability([0, 0])), compare=False)
    assert [row["target_score"] for row in found.statistics] == pytest.approx(expected[:, 0].log().tolist())


def test_the_gradient_of_a_probability_is_that_of_the_output() -> None:
    """Oracle: autograd through the output itself."""
    model = of(nn.Softmax(1))
    x = IMAGES.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(x)[:, 2].sum(), x)
    torch.testing.assert_close(explainers.saliency(model, IMAGES, Probability(2)), expected)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "logit"])
def test_the_caller_decides(score: str) -> None:
    model = plain(classes=SEVERAL)
    found = explain("saliency", model, IMAGES, 1, score=score, compare=False)
    y = logits()

    assert found.score == score and declared() is None
    expected = {"softmax": y.softmax(1), "sigmoid": y.sigmoid(), "logit": None}[score]
    if expected is None:
        assert found.probabilities is None and "probability" not in found.statistics[0]
    else:
        assert found.statistics[1]["probability"] == pytest.approx(float(expected[1, 1]))
    curve = evaluate(model, IMAGES, found, metrics="insertion", steps=3, controls=False)
    assert curve.options["score"] == score, "that of the explanation"
    torch.testing.assert_close(curve.curves["insertion"][:, -1], (y if expected is None else expected)[:, 1])


def test_a_saved_explanation_keeps_its_score(tmp_path) -> None:
    found = explain("saliency", plain(classes=SEVERAL), IMAGES, 1, score="sigmoid", compare=False)
    found.save(str(tmp_path / "one.npz"))
    again = Explanation.load(str(tmp_path / "one.npz"))
    assert again.score == "sigmoid" and torch.equal(again.probabilities, found.probabilities)


def test_the_option_of_a_method_with_that_name_keeps_its_values() -> None:
    """ShapleyCAM has an option `score` of its own."""
    found = explain("shapley_cam", plain(classes=SEVERAL), IMAGES, 1, layer="relu2", score="logit", compare=False)
    assert found.options["score"] == "logit" and found.score == "softmax"
    found = explain("shapley_cam", plain(classes=SEVERAL), IMAGES, 1, layer="relu2", score="sigmoid", compare=False)
    assert found.options["score"] == "rest" and found.score == "sigmoid"


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


# Values alone


def small(scale: float = 1.0) -> nn.Module:
    """Return a network whose logits happen to be between 0 and 1, and near 1 / classes."""
    model = plain(classes=4)
    with torch.no_grad():
        model.head.weight.mul_(1e-3 * scale)
        model.head.bias.fill_(0.25)
    return model


def test_logits_between_0_and_1_stay_logits() -> None:
    found = explain("saliency", small(), IMAGES, compare=False)
    assert float(found.scores.min()) > 0 and float(found.scores.max()) < 1
    assert found.score == "softmax" and not codes(found) & {"unclear_scores", "probability_scores"}


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


def test_forward_is_followed_too() -> None:
    model = plain(classes=SEVERAL)
    found = explain("saliency", model, IMAGES, forward=lambda images: model(images).sigmoid(), compare=False)
    assert found.score == "identity"


def test_the_detection_runs_no_network_for_ordinary_logits() -> None:
    """It would make every first call slower."""
    model, runs = plain(classes=SEVERAL), []
    explain("saliency", model, 4 * IMAGES, 0, compare=False)  # the checks of rows and of noise run once
    model.register_forward_hook(lambda *_: runs.append(1))
    explain("saliency", model, 4 * IMAGES, 0, compare=False)
    assert len(runs) == 1
    model = of(nn.Softmax(1))
    explain("saliency", model, IMAGES, Probability(0), compare=False)
    model.register_forward_hook(lambda *_: runs.append(1))
    explain("saliency", model, IMAGES, Probability(1), compare=False)
    assert len(runs) == 2, "the detection is cached"


def test_a_gate_inside_the_network_is_not_the_end() -> None:
    model = Then(lambda y: y * y.sigmoid())
    forward = profile(model, IMAGES).forward
    assert ending(forward.graph, forward.end) is None
    assert ending(forward.graph, 1) in (None, "linear")


# Wrong uses and findings


def test_a_score_that_does_not_fit_is_refused() -> None:
    model = plain(classes=SEVERAL)
    with pytest.raises(BadOption, match="score='identity' .* range from"):
        explain("saliency", model, 4 * IMAGES, score="identity")
    with pytest.raises(BadOption, match="score='identity' .* range from"):
        evaluate(model, 4 * IMAGES, IMAGES.sum(1), score="identity")
    with pytest.raises(BadOption, match="'softmaks' is not valid. Did you mean"):
        explain("saliency", model, IMAGES, score="softmaks")
    with pytest.raises(BadOption, match="softmax is always 1. Give 'sigmoid'"):
        explain("saliency", plain(classes=BINARY), IMAGES, score="softmax")
    with pytest.raises(BadTarget, match=r"Give Logit\(class\)"):
        explain("saliency", model, IMAGES, Probability(1), score="logit")
    with pytest.raises(BadTarget, match=r"Give Logit\(class\)"):
        Probability(1, score="logit")


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
