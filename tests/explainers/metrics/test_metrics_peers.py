"""Where torchcam and pytorch-grad-cam are wrong: rows M01 to M04 of docs/metrics.md."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from explainers import evaluate
from tests.support.nets import check_once, random_images, residual

torchcam = pytest.importorskip("torchcam.metrics")
road = pytest.importorskip("pytorch_grad_cam.metrics.road")

CLASSES = [1, 2, 3]
FEW = {"controls": False, "target": CLASSES, "batch_size": 5, "precision": "float32"}


class Given:
    """The minimal interface of an extractor for torchcam's metrics, with precomputed maps."""

    def __init__(self, model: nn.Module, maps: Tensor) -> None:
        self.model, self.maps = model, maps

    def __call__(self, *args, **kwargs) -> list[Tensor]:
        return [self.maps]

    def fuse_cams(self, cams: list[Tensor]) -> Tensor:
        return cams[0]

    def _hooks_off(self):
        return nullcontext()


@pytest.fixture
def net() -> nn.Module:
    return residual().float()


@pytest.fixture
def images() -> Tensor:
    return random_images().float()


@pytest.fixture
def maps() -> Tensor:
    return torch.rand(3, 12, 16, generator=torch.Generator().manual_seed(0))


def test_m01_a_constant_map_has_no_order():
    """torchcam deletes a constant map from top to bottom, which beats chance if the object is at the top."""
    image = torch.zeros(1, 3, 32, 32)
    image[:, :, :8] = 3.0  # the only object

    class Top(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x[:, 0, :8].mean((1, 2)), x.new_zeros(len(x))], 1)

    metric = torchcam.DeletionInsertionMetric(Given(Top(), torch.ones(1, 32, 32)), None, steps=16)
    metric.update(image, [0])
    options = {"target": 0, "baseline": "zeros", "steps": 16, "score": "logit", "controls": False}
    found = evaluate(Top(), image, torch.ones(1, 32, 32), **options)
    assert metric.summary()["deletion_auc"] == pytest.approx(3 / 8), "as good as the best possible map"
    assert found.values["deletion"].item() == pytest.approx(1.5, abs=0.05), "half, like a random order"


def test_m02_a_drop_of_a_negative_score_is_not_a_drop(net, images, maps):
    """torchcam scores logits by default: its share of a negative logit is negative, a gain."""
    metric = torchcam.ClassificationMetric(Given(net, maps))
    metric.update(-images, CLASSES)
    found = evaluate(net, -images, maps, metrics="average_drop", score="logit", **FEW)
    logits = net(-images)[range(3), CLASSES]
    assert found.values["average_drop"].isnan().tolist() == (logits <= 0).tolist() and bool((logits <= 0).any())
    assert "not above 0" in next(reason for reason in found.reasons["average_drop"] if reason)
    values = found.values["average_drop"]
    assert bool(((values >= 0) & (values <= 1) | values.isnan()).all())


def test_m03_ties_do_not_remove_more_than_the_level(net, images):
    """grad-cam keeps what is below a percentile: of a map that is zero on three quarters, as a CAM after its ReLU, all
    is removed at 80%, and the network sees an image without any pixel of the original."""
    heat = torch.zeros(1, 12, 16)
    heat[:, :6, :8] = torch.rand(1, 6, 8, generator=torch.Generator().manual_seed(1)) + 0.1
    kept = []

    class Seen(road.NoisyLinearImputer):
        def __call__(self, image, mask):
            kept.append(int(mask.sum()))
            return image

    road.RemoveMostRelevantFirst(20, Seen())(images[0], heat[0])
    assert kept == [0], "none of 192 pixels is left, though a fifth was to stay"
    shown = []

    def look(model, inputs):
        shown.extend(inputs[0])

    check_once(net, images)
    handle = net.register_forward_pre_hook(look)
    evaluate(net, images[:1], heat, metrics="road", target=1, controls=False, batch_size=1)
    handle.remove()
    unchanged = sorted(int((image == images[0]).all(0).sum()) for image in shown)
    assert unchanged[:8] == [192 - 153] * 2 + [192 - 115] * 2 + [192 - 76] * 2 + [192 - 38] * 2


def test_m04_noise_does_not_use_the_global_generator(net, images, maps):
    """grad-cam draws ROAD's noise from torch's global generator."""
    before = torch.get_rng_state()
    evaluate(net, images, maps, metrics="road", **FEW)
    assert torch.equal(torch.get_rng_state(), before)
    road.NoisyLinearImputer(noise=0.1)(images[0], (maps[0] > 0.5).float())
    assert not torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(before)
