"""Findings that need the model: each is provoked through `explain`, and absent otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import METHODS, explain
from explainers.findings import Finding
from tests.support.nets import plain, random_images, residual, top


def found(explanation: explainers.Explanation, code: str, index: int = 0) -> Finding | None:
    return next((each for each in explanation.findings[index] if each.code == code), None)


def test_an_improbable_target_is_a_finding():
    """With logits a hundred times as large the last class has probability 0; the remedy is the top class."""
    net, x = plain(), random_images(1)
    net.head.weight.data *= 100
    scores = net(x)[0]
    last, first = int(scores.argmin()), int(scores.argmax())

    finding = found(explain("saliency", net, x, last), "unlikely_target")

    assert finding is not None and finding.remedy == {"target": first}
    assert "ranks 7 of 7" in finding.sentence and str(first) in finding.sentence
    assert found(explain("saliency", net, x, first), "unlikely_target") is None


def test_an_unusual_image_size_is_a_finding():
    """The images' shorter side is 12; half to twice the trained side is usual."""
    for trained, reported in ((32, True), (5, True), (16, False), (None, False)):
        finding = found(explain("saliency", plain(), random_images(1), trained_size=trained), "unusual_size")
        assert (finding is not None) == reported, trained
        assert not reported or ("12" in finding.sentence and str(trained) in finding.sentence)
    for settings in ({"image_size": 32}, {"default_cfg": {"input_size": (3, 32, 32)}}):
        net = plain()
        vars(net).update(settings)
        assert found(explain("saliency", net, random_images(1)), "unusual_size"), settings


class Alike(nn.Module):
    """Two classes with nearly equal weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain()[:4]
        self.head = nn.Linear(8, 2).double()
        with torch.no_grad():
            self.head.weight[1] = self.head.weight[0] * 1.001

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(x).mean((2, 3)))


@pytest.mark.parametrize("name", ["grad_cam", "saliency", "input_x_gradient"])
def test_a_class_insensitive_map_is_a_finding(name):
    options = {"relu": False} if "relu" in METHODS[name].options else {}
    finding = found(explain(name, Alike().eval(), random_images(1), **options), "class_insensitive")
    assert finding is not None and "Contrast" in finding.sentence
    assert found(explain(name, residual(), random_images(1), 1), "class_insensitive") is None
    assert found(explain(name, Alike().eval(), random_images(1), compare=False), "class_insensitive") is None


def test_the_first_non_finite_layer_is_named_and_a_good_map_has_no_findings():
    for layer in ("layer1.conv2", "layer2.bn1", "fc"):
        net, x = residual(), random_images(1)
        assert explain("hires_cam", net, x, top(net, x)).findings == [[]]
        net.get_submodule(layer).weight.data[0] = torch.inf
        finding = found(explain("saliency", net, x), "non_finite")
        assert finding is not None and repr(layer) in finding.sentence


def test_a_score_that_does_not_depend_on_the_layer_has_no_gradient():
    """It is not a wrong target: the auxiliary head uses the layer, the other head does not."""

    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.side = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"out": self.conv(x).mean((2, 3)), "aux": self.side(x).mean((2, 3))}

    e = explain("grad_cam", Forked().eval(), torch.randn(1, 3, 8, 8), lambda output: output["out"][:, 0], layer="side")
    assert found(e, "no_gradient")
