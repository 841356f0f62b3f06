"""How scores become probabilities: detected from the network, given by the caller, and used by every report of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import Explanation, Facts, LogProbability, Probability, evaluate, explain
from explainers.errors import BadOption, BadTarget
from explainers.probabilities import declared
from tests.support.nets import Written, act_grad, curved, plain, random_images

IMAGES = random_images(2)
BINARY, SEVERAL = 1, 5


def then(function: Callable[[Tensor], Tensor], classes: int = SEVERAL) -> Any:
    """A network followed by a function of its scores."""
    return Written(lambda self, x: function(self.net(x)), net=plain(classes=classes)).eval()


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


def sigmoid(classes: int = SEVERAL) -> Tensor:
    return logits(classes).sigmoid()


def softmax() -> Tensor:
    return logits().softmax(1)


CASES: dict[str, tuple[Callable[[], nn.Module], str, Callable[[], Tensor]]] = {
    "logits": (lambda: plain(classes=SEVERAL), "softmax", softmax),
    "nn.Softmax": (lambda: of(nn.Softmax(1)), "identity", softmax),
    "log-softmax": (lambda: of(nn.LogSoftmax(1)), "softmax", softmax),
    "nn.Sigmoid": (lambda: of(nn.Sigmoid()), "identity", sigmoid),
    "in-place sigmoid": (lambda: then(torch.Tensor.sigmoid_), "identity", sigmoid),
    "log-sigmoid": (lambda: of(nn.LogSigmoid()), "log", sigmoid),
    "one logit": (lambda: plain(classes=BINARY), "sigmoid", lambda: sigmoid(BINARY)),
    "two columns of one sigmoid": (
        lambda: then(lambda y: torch.cat([y.sigmoid(), 1 - y.sigmoid()], 1), BINARY),
        "identity",
        lambda: torch.cat([sigmoid(BINARY), 1 - sigmoid(BINARY)], 1),
    ),
    "without background": (lambda: then(lambda y: y.softmax(1)[:, 1:]), "identity", lambda: softmax()[:, 1:]),
    "mean of two": (
        lambda: then(lambda y: (y.softmax(1) + (2 * y).softmax(1)) / 2),
        "identity",
        lambda: (softmax() + (2 * logits()).softmax(1)) / 2,
    ),
    "multi-label by configuration": (lambda: Configured("multi_label_classification"), "sigmoid", sigmoid),
    "classes by configuration": (lambda: Configured("single_label_classification"), "softmax", softmax),
    # A gate is not the end; the logits happen to be between 0 and 1.
    "gate": (lambda: then(lambda y: y * y.sigmoid()), "softmax", lambda: (logits() * sigmoid()).softmax(1)),
    "logits near 1 / 5": (
        lambda: then(lambda y: 0.2 + 1e-3 * y),
        "softmax",
        lambda: (0.2 + 1e-3 * logits()).softmax(1),
    ),
}


def codes(explanation: Explanation) -> set[str]:
    return {finding.code for row in explanation.findings for finding in row}


@pytest.mark.parametrize("case", CASES)
def test_explanations_metrics_and_targets_use_the_probability_that_the_network_means(case: str) -> None:
    build, score, expect = CASES[case]
    model, expected = build(), expect()
    found = explain("saliency", model, IMAGES, 0, compare=False)
    assert found.score == score == explainers.detect_score(model, IMAGES)
    assert not codes(found) & {"unclear_scores", "probability_scores"}
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
def test_the_caller_decides(score: str) -> None:
    model, y = plain(classes=SEVERAL), logits()
    found = explain("saliency", model, IMAGES, 1, score=score, compare=False)
    expected = {"softmax": softmax(), "sigmoid": sigmoid(), "logit": y}[score]
    assert found.score == score and declared() is None
    with explainers.declared_score(score):
        assert explainers.detect_score(model, IMAGES) == score
    known = None if score == "logit" else pytest.approx(float(expected[1, 1]))
    assert found.statistics[1].get("probability") == known and (found.probabilities is None) == (known is None)
    curve = evaluate(model, IMAGES, found, metrics="insertion", steps=3, controls=False)
    assert curve.options["score"] == score, "that of the explanation"
    torch.testing.assert_close(curve.curves["insertion"][:, -1], expected[:, 1])


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
        function(then(lambda y: y.softmax(1)), IMAGES, target, layer="net.relu2", **options), expected
    )


def test_the_option_of_a_method_with_that_name_keeps_its_values() -> None:
    """ShapleyCAM has an option `score` of its own."""
    for given, own, kind in (("logit", "logit", "softmax"), ("sigmoid", "rest", "sigmoid")):
        model = plain(classes=SEVERAL)
        found = explain("shapley_cam", model, IMAGES, 1, layer="relu2", score=given, compare=False)
        assert found.options["score"] == own and found.score == kind


# Values alone


def seen(model: nn.Module, images: Tensor = IMAGES) -> tuple[str, set[str]]:
    """The score that is used, and what is said about it; the caller may decide."""
    found = explain("saliency", model, images, compare=False)
    given = explain("saliency", model, images, score="identity", compare=False)
    assert given.score == "identity" and "unclear_scores" not in codes(given)
    return found.score, codes(found) & {"unclear_scores", "probability_scores"}


PROVEN, UNCLEAR = ("identity", {"probability_scores"}), ("softmax", {"unclear_scores"})


def test_rows_that_sum_to_one_prove_it_where_operations_do_not() -> None:
    by_hand = then(lambda y: y.exp() / y.exp().sum(1, keepdim=True))
    assert seen(by_hand, random_images(1)) == seen(by_hand, random_images(4)) == PROVEN
    for function in (lambda y: 1 / (1 + (-y).exp()), lambda y: 0.9 * y.sigmoid()):
        assert seen(then(function)) == UNCLEAR, "a sigmoid by hand, and one with another range, no probability"


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
        (lambda: explainers.check_score("identity", {"logits": torch.tensor([[3.0, -1.0]])}), BadOption, "probabil"),
        (lambda: explainers.check_score("identity", {"boxes": torch.rand(1, 4)}), BadTarget, ""),
        (lambda: explainers.check_score("sofmax"), BadOption, "Did you mean 'softmax'"),
    ]
    for call, error, words in calls:
        with pytest.raises(error, match=words):
            call()


def test_a_saturated_output_is_reported_and_logits_are_suggested() -> None:
    """The gradient vanishes inside the network, for which no other target helps."""
    model = then(lambda y: (40 * y).softmax(1))
    found = explain("saliency", model, IMAGES[:1], compare=False)
    assert float(found.scores.max()) > 0.999 and found.score == "identity"
    (finding,) = [each for each in found.findings[0] if each.code == "saturated"]
    assert "output of the network" in finding.sentence and "forward=" in finding.sentence and not finding.remedy
    assert "saturated" not in codes(explain("occlusion", model, IMAGES[:1], compare=False)), "it needs no gradient"
    logits = explain("saliency", model, IMAGES[:1], forward=model.net, compare=False)
    assert logits.score == "softmax" and "saturated" not in codes(logits)


def test_regression_has_no_unlikely_class() -> None:
    model = then(lambda y: 30 * y, 9)
    worst = int(model(IMAGES[:1]).argmin())
    assert "unlikely_target" in codes(explain("saliency", model, IMAGES[:1], worst, compare=False))
    assert "unlikely_target" not in codes(explain("saliency", model, IMAGES[:1], worst, score="logit", compare=False))
    assert explain("saliency", Configured("regression"), IMAGES, 0, compare=False).score == "logit"


# Functions for tools that are built on the library, such as the page


def test_contributions_are_sums_of_activation_times_gradient() -> None:
    """Oracle: autograd by hand."""
    net, images = curved().float(), random_images().float()
    a, g, _ = act_grad(net, net.act1, images, [3, 1, 2])
    found = explainers.channel_contributions(net, images, [3, 1, 2], layer="act1")
    torch.testing.assert_close(found, (a * g).sum((2, 3)).double(), check_dtype=True)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_cut_off_cell_has_a_gradient_before_its_activation() -> None:
    """Weights times 100 take most cells of the ReLU6 over 6, where its gradient is 0."""
    net, images = plain().float(), IMAGES[:1].float()
    net.relu1 = nn.ReLU6()
    net.conv1.weight.data.mul_(100)
    before = net.conv1(images)[0].detach()
    channel, row, column = (int(k) for k in (before == before.max()).nonzero()[0])
    target = explainers.BeforeActivation("relu1", channel, (row, column))

    assert not explainers.saliency(net, images, explainers.unit("relu1", channel, (row, column))).any()
    assert explainers.saliency(net, images, target).any()
    value = target.value(net, images)
    assert value is not None and float(value) == pytest.approx(float(before.max()))
    assert explainers.BeforeActivation("conv1", channel, (row, column)).value(net, images) is None


def test_classes_of_pixels_and_their_areas() -> None:
    maps = torch.zeros(1, 3, 2, 3)
    maps[0, 1, :, :2], maps[0, 2, 0, 2] = 1.0, 2.0
    (classes,) = explainers.pixel_classes({"out": maps})
    assert classes.tolist() == [[1, 1, 2], [1, 1, 0]]
    assert explainers.pixel_classes(maps).equal(classes[None])
    assert list(explainers.classes_by_area(classes, last={1})) == [0, 2, 1]
    assert explainers.connected_components(classes).tolist() == [[0, 0, 1], [0, 0, 2]]
    with pytest.raises(explainers.BadTarget, match="not class maps"):
        explainers.pixel_classes(torch.rand(1, 3))


def test_an_evaluation_gives_its_means_results_and_order() -> None:
    found = evaluate(curved(), IMAGES, "grad_cam", target=[3, 1], steps=4, metrics=["deletion", "insertion"])
    mean, error = found.mean_and_error("deletion")
    values = found.values["deletion"].double()
    assert (mean, error) == pytest.approx((float(values.mean()), float(values.std() / 2**0.5)))
    other = found.controls["deletion"]["edge"]
    assert found.mean_and_error("deletion", "edge")[0] == pytest.approx(float(other.double().mean()))
    assert found.results == {
        name: {control: found.compare(name, control).verdict for control in each}
        for name, each in found.controls.items()
    }
    ranks = found.pixel_ranks()
    assert ranks.shape == found.maps.shape
    for plane, own in zip(found.maps.flatten(1), ranks.flatten(1), strict=True):
        assert own.sort().values.equal(torch.arange(own.numel(), dtype=own.dtype))
        assert (plane[own.argsort()].diff() <= 0).all(), "highest first"


@pytest.mark.parametrize(
    ("probabilities", "score", "exclusive"),
    [((0.5, 0.5), "softmax", True), ((0.5, 0.5), "sigmoid", False), ((0.9, 0.9), "identity", False), ((), None, False)],
)
def test_classes_are_exclusive_if_their_probabilities_sum_to_1(
    probabilities: tuple[float, ...], score: str | None, exclusive: bool
) -> None:
    found = Facts(total=1.0).with_probabilities(probabilities, score)
    assert (found.total, found.probabilities, found.exclusive) == (1.0, probabilities, exclusive)
