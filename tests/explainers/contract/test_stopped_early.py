"""A map whose method was stopped says so: how many samples of how many, why, and nothing that only holds for all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from explainers import METHODS, Explanation, explain, smooth

IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
LONG = [name for name, method in METHODS.items() if method.long and not method.needs]
FEW = {"rise": {"samples": 40}, "d_rise": {"samples": 40}, "mc_rise": {"samples": 40}, "lime": {"samples": 40}}
FEW |= {"kernel_shap": {"samples": 100}, "shapley_sampling": {"samples": 2}, "sobol": {"samples": 4}}
FEW |= {"rex": {"samples": 2, "steps": 2}}
FEW |= {"hsic": {"samples": 60}, "extremal_perturbation": {"steps": 5}, "occlusion": {"window": 8, "stride": 8}}


def small() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


def codes(found: Explanation) -> set[str]:
    return {finding.code for row in found.findings for finding in row}


@pytest.mark.parametrize("method", LONG)
def test_a_stopped_method_states_its_samples_and_a_complete_one_too(method: str) -> None:
    net, options = small(), FEW.get(method, {})
    cut = explain(method, net, IMAGES, 1, budget=1e-6, batch_size=1, **options)
    assert cut.done < cut.total and not cut.is_complete
    assert "stopped_early" in codes(cut)
    assert not codes(cut) & {"flat", "no_effect", "nothing_positive", "search_failed", "not_converged", "incomplete"}
    finding = cut.findings[1][0]
    assert f"after {cut.done:,} of {cut.total:,} samples" in finding.sentence and "budget" in finding.sentence
    assert f"{cut.done:,} of {cut.total:,} samples" in repr(cut)

    whole = explain(method, net, IMAGES, 1, **options, **finding.remedy)
    assert whole.is_complete and 1 <= whole.done == whole.total and "stopped_early" not in codes(whole)
    assert "samples," not in repr(whole)


def test_progress_that_returns_false_is_named_and_saved(tmp_path: Path) -> None:
    found = explain("occlusion", small(), IMAGES, 1, batch_size=3, progress=lambda step: step.done < 6)
    assert (found.done, found.is_complete) == (6, False)
    finding = found.findings[0][0]
    assert "after 6 of 144 samples" in finding.sentence and "progress" in finding.sentence and not finding.remedy
    found.save(str(tmp_path / "cut.npz"))
    again = Explanation.load(str(tmp_path / "cut.npz"))
    assert (again.done, again.total, again.is_complete) == (6, 144, False)
    assert (explain("grad_cam", small(), IMAGES, 1).done, again.total) == (1, 144)
    smoothed = smooth("saliency", sigma=0.1, samples=9)(small(), IMAGES, 1, progress=lambda step: step.done < 3)
    assert (smoothed.samples, smoothed.total) == (3, 9) and "3 of 9 samples" in repr(smoothed)
    last = explain("occlusion", small(), IMAGES, 1, batch_size=144, progress=lambda step: False)
    assert last.is_complete, "it was stopped after its last sample"


def test_the_number_of_samples_is_that_of_each_image() -> None:
    one, two = (explain("rise", small(), IMAGES[:n], 1, samples=20) for n in (1, 2))
    assert (one.done, one.total) == (two.done, two.total) == (20, 20)

    class Alone(nn.Module):
        """The rows depend on each other, so each image runs alone."""

        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x - x.mean(0, keepdim=True) * (len(x) > 1))

    for method in ("rise", "smooth_grad_cam_pp", "score_cam"):
        options = {} if method == "score_cam" else {"samples": 4}
        each = [explain(method, Alone().eval(), IMAGES[:n], 1, **options) for n in (1, 2)]
        assert each[0].total == each[1].total == each[1].done, method
