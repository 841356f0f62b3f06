"""`remove_brightest`: closed forms of linear networks, the deletion curve, and which pixels of a map are removed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import explainers
from explainers import evaluate, remove_brightest
from tests.support.nets import LinearScore, random_images, residual

GENERATOR = torch.Generator().manual_seed(0)
NET = LinearScore(1, 10, 20).eval()
WEIGHT = NET.weight.detach()
IMAGES = torch.rand(3, 1, 10, 20, generator=GENERATOR, dtype=torch.float64)
BASELINE = torch.rand(3, 1, 10, 20, generator=GENERATOR, dtype=torch.float64)
MAPS = torch.rand(3, 10, 20, generator=GENERATOR, dtype=torch.float64)


def removed(maps: Tensor, images: Tensor | None = None, **options) -> explainers.Removal:
    """The result for the first images, by default as many as there are maps."""
    images = IMAGES[: len(maps)] if images is None else images
    settings = {"target": 0, "baseline": BASELINE[: len(images)], "score": "logit"} | options
    return remove_brightest(NET, images, maps, **settings)


def test_scores_of_a_linear_network_by_hand():
    """Without S, the score is that of the image less the sum of w (x - b) over S."""
    found = removed(MAPS, share=0.25)
    terms = (WEIGHT * (IMAGES - BASELINE))[:, 0]
    whole = (WEIGHT * IMAGES).sum((1, 2, 3))
    assert torch.allclose(found.scores, whole) and found.target == [0, 0, 0] and found.unit == "logit"
    assert found.without_random.shape == (3, 19)
    for n in range(3):
        highest = MAPS[n] >= MAPS[n].flatten().sort(descending=True).values[49]
        assert torch.equal(found.mask[n], highest) and found.share[n] == 0.25
        assert found.without_brightest[n].item() == pytest.approx((whole[n] - terms[n][highest].sum()).item())
        possible = [
            (whole[n] - terms[n][highest.roll((down, right), (0, 1))].sum()).item()
            for down in range(10)
            for right in range(20)
        ]
        for value in found.without_random[n].tolist():
            assert min(abs(value - each) for each in possible) < 1e-9, "the same pixels, moved"


def test_random_places_are_uniform_and_equal_for_all_images():
    """A network that returns one pixel's value: the share of hits, and their places."""
    places, network = torch.zeros(4, 5), LinearScore(1, 4, 5).eval()
    places[1, 2] = 1.0
    network.weight.data = torch.arange(20.0).double().view(1, 4, 5)
    images = torch.ones(2, 1, 4, 5, dtype=torch.float64)
    options = {"target": 0, "baseline": 0.0, "score": "logit", "share": 0.05, "samples": 1000}
    found = remove_brightest(network, images, places.double().expand(2, 4, 5), **options)
    counts = torch.bincount((190 - found.without_random[0]).round().long(), minlength=20)
    assert len(counts) == 20 and float(((counts - 50) ** 2 / 50).sum()) < 43.8, "chi-squared, 19 degrees, p = 0.001"
    assert torch.equal(found.without_random[0], found.without_random[1])
    other = remove_brightest(network, images, places.double().expand(2, 4, 5), seed=1, **options)
    assert not torch.equal(found.without_random, other.without_random)


def test_the_score_is_a_point_of_the_deletion_curve():
    """With ties: both break them in the same random order."""
    maps = (4 * MAPS).round()
    for score, unit in (("probability", "softmax probability"), ("logit", "logit")):
        options = {"target": 0, "baseline": "blur", "score": score, "seed": 3}
        curve = evaluate(NET, IMAGES, maps, steps=20, controls=False, **options).curves["deletion"]
        found = removed(maps, share=0.2, **options)
        assert torch.allclose(found.without_brightest, curve[:, 4]) and torch.allclose(found.scores, curve[:, 0])
        assert found.unit == unit
    assert not torch.equal(found.mask, removed(maps, share=0.2, seed=1).mask)


def test_maps_are_resized_and_attributions_summed_over_their_channels():
    small = torch.zeros(1, 2, 4, dtype=torch.float64)
    small[0, 0, 3] = 1.0
    found = removed(small, share=0.05)
    rows, columns = found.mask[0].nonzero().unbind(1)
    assert len(rows) == 10 and rows.max() < 5 and columns.min() > 14, "the upper right corner"
    attributions = torch.stack([MAPS[:1] - 2.0, torch.full_like(MAPS[:1], 1.9)], 1)
    both = remove_brightest(LinearScore(2, 10, 20), IMAGES[:1].expand(1, 2, 10, 20), attributions, target=0, share=0.05)
    assert torch.equal(both.mask, removed(MAPS[:1], share=0.05).mask)


def test_only_positive_values_are_removed_and_the_share_is_the_true_one():
    """The number of pixels is rounded down: 0.29 x 200 is 57.99999999999999 in floating point."""
    maps = torch.full((2, 10, 20), -1.0, dtype=torch.float64)
    maps[0, 3, 4:7], maps[1] = 0.5, MAPS[1]
    found = removed(maps)
    assert found.share.tolist() == [3 / 200, 0.2] and found.mask[0].nonzero().tolist() == [[3, 4], [3, 5], [3, 6]]
    sparse = torch.zeros(1, 10, 20, dtype=torch.float64)
    sparse[0, 9, 19] = 1e-300
    assert removed(sparse).mask.sum() == 1
    for share, pixels in ((0.29, 58), (0.99, 198), (0.01, 2)):
        assert removed(MAPS[:1], share=share).mask.sum() == pixels


def test_the_target_of_an_explanation_and_the_names_of_methods_are_used():
    model, images = residual(), random_images()
    explanation = explainers.explain("input_x_gradient", model, images, [1, 2, 3])
    found, by_name = (
        remove_brightest(model, images, maps, target=target, samples=2)
        for maps, target in ((explanation, None), ("input_x_gradient", [1, 2, 3]))
    )
    assert found.target == [1, 2, 3] and found.unit == "softmax probability"
    assert torch.allclose(found.scores, model(images).softmax(1).diagonal(1)[:3])
    assert torch.allclose(by_name.without_brightest, found.without_brightest, atol=1e-6)
    assert remove_brightest(model, images, explanation, target=0, samples=2).target == [0, 0, 0]
    assert remove_brightest(model, images, explanation.map, samples=2).target == model(images).argmax(1).tolist()


def test_progress_can_stop_the_call():
    steps = []
    found = removed(MAPS[:1], batch_size=2, progress=lambda step: steps.append(step.done) or len(steps) < 2)
    assert steps == [2, 4] and found.without_brightest.isfinite().all()
    assert found.without_random[0, :2].isfinite().all() and found.without_random[0, 2:].isnan().all()


def test_videos_are_moved_along_all_axes():
    video, maps = torch.rand(1, 1, 4, 5, 6, dtype=torch.float64), torch.rand(1, 4, 5, 6, dtype=torch.float64)
    network = LinearScore(1, 4, 5, 6).eval()
    found = remove_brightest(network, video, maps, target=0, score="logit", baseline=0.0)
    assert found.mask.shape == (1, 4, 5, 6) and found.mask.sum() == 24
    assert found.without_random.std() > 0


def test_the_text_says_what_was_measured():
    assert repr(removed(MAPS)).startswith("Removal(logit ") and "19 random places" in repr(removed(MAPS))
    assert repr(removed(MAPS)).endswith("; and 2 more images)")
