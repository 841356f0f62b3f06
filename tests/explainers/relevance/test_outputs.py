"""Backward rules on networks with unusual outputs, targets and forward passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers

RULES = ("lrp", "attn_lrp", "cp_lrp", "deep_lift")


class Custom(nn.Module):
    """Linear(12, 2) with rows of 1 and -2, whose scores are returned in an object."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.head, self.wrap = nn.Linear(12, 2), wrap
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0], [-2.0]]).expand(2, 12))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.head(x.flatten(1)))


@dataclass(frozen=True)
class DataOutput:
    logits: Tensor


class SlotOutput:
    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class HiddenOutput:
    """Its tensor is in a function, not in an attribute."""

    def __init__(self, logits: Tensor) -> None:
        self.read = lambda: logits


explainers.register_output(HiddenOutput, lambda output: [output.read()], lambda output, parts: HiddenOutput(*parts))
OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "dataclass": (DataOutput, 1),
    "namespace": (lambda scores: SimpleNamespace(logits=scores), 1),
    "slots": (SlotOutput, 1),
    "nested": (lambda scores: {"a": [SimpleNamespace(b=scores)]}, lambda output: output["a"][0].b[:, 1]),
    "object per image": (
        lambda scores: [SimpleNamespace(row=row) for row in scores],
        lambda output: torch.stack([each.row[1] for each in output]),
    ),
    "registered": (HiddenOutput, lambda output: output.read()[:, 1]),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_relevance_starts_from_the_score_in_any_output_and_dependent_rows_are_found(kind: str) -> None:
    """Each image gets the map of a call with this image only, although a network subtracts the mean of the batch."""
    wrap, target = OUTPUTS[kind]
    images = torch.ones(2, 3, 2, 2) * torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
    for name in RULES:
        found = getattr(explainers, name)(Custom(wrap), images, target)
        assert torch.allclose(found.flatten(1).sum(1), torch.tensor([-24.0, -48.0])), name

    class Mixing(Custom):
        def forward(self, x: Tensor) -> Any:
            return self.wrap(self.head((x - x.mean(0)).flatten(1) ** 2 + x.flatten(1)))

    images = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    network = Mixing(wrap)
    alone = torch.cat([explainers.saliency(network, image[None], target) for image in images])

    together = explainers.explain("saliency", network, images, target)

    assert torch.allclose(together.raw, alone, atol=1e-5)
    assert all("rows_depend" in [each.code for each in findings] for findings in together.findings)


class Functional(nn.Module):
    """Computes a gradient by torch.func inside the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        slope = torch.func.grad(lambda value: value.square().sum())(x)
        scores: Tensor = self.head((x + slope).flatten(1))
        return scores


def test_gradients_inside_the_forward_pass_are_refused() -> None:
    """Or right all the same: the rules conserve the score of this network without biases up to its bias."""
    torch.manual_seed(0)
    model, images = Functional().double(), torch.rand(1, 3, 2, 2, dtype=torch.float64)
    for name in (*RULES, "deep_lift_shap", "excitation_backprop"):
        try:
            found = getattr(explainers, name)(model, images, 1)
        except explainers.UnsupportedOperation as error:
            assert "saliency" in str(error), "a way out is named"
        else:
            assert torch.isclose(found.sum(), model(images)[0, 1] - float(model.head.bias[1])), name


def test_lrp_says_when_its_sum_is_not_the_score() -> None:
    torch.manual_seed(0)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3, bias=False))
    network, images = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), *head), torch.randn(2, 3, 8, 8)
    linear = (2, explainers.Contrast(1, 2), lambda output: 3 * output[:, 2])
    other = (lambda y: y[:, 2] ** 2, lambda y: y[:, 2] + 5, explainers.Probability(2), explainers.LogProbability(2))
    for target in (*linear, *other):
        found = explainers.explain("lrp", network, images, target, rule="epsilon")
        for row, findings, facts in zip(found.raw, found.findings, found.statistics, strict=True):
            assert ("nonlinear_target" in [each.code for each in findings]) == (target in other)
            if target in linear:
                assert float(row.sum()) == pytest.approx(facts["target_score"], rel=1e-3)
