"""Deletion, insertion and ROAD: by hand, against a loop, and the imputed pixels by the system written out."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from explainers import evaluate
from explainers.perturbation import imputation
from explainers.perturbation.imputation import impute
from tests.support.nets import LinearScore, Written, check_once, random_images, residual


def by_hand(image: Tensor, removed: Tensor) -> Tensor:
    """One equation for each removed pixel of an image [C, H, W]: 1/6 for direct neighbors, 1/12 for diagonal ones."""
    place = {tuple(pixel): k for k, pixel in enumerate(removed.nonzero().tolist())}
    system = torch.zeros(len(place), len(place), dtype=torch.float64)
    right = torch.zeros(len(place), len(image), dtype=torch.float64)
    for (y, x), k in place.items():
        for dy, dx in itertools.product((-1, 0, 1), repeat=2):
            near = y + dy, x + dx
            if near == (y, x) or not (0 <= near[0] < removed.shape[0] and 0 <= near[1] < removed.shape[1]):
                continue
            weight = 1 / 12 if dy and dx else 1 / 6
            system[k, k] += weight
            if near in place:
                system[k, place[near]] -= weight
            else:
                right[k] += weight * image[:, near[0], near[1]]
    filled = image.clone()
    filled[:, removed] = torch.linalg.solve(system, right).T
    return filled


def masks(height: int, width: int) -> dict[str, Tensor]:
    """Holes of every kind: scattered, a block, at a border and a corner, nearly all, a checkerboard."""
    generator = torch.Generator().manual_seed(1)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    inner = (rows > 2) & (rows < height - 3) & (columns > 2) & (columns < width - 3)
    return {
        "scattered": torch.rand(height, width, generator=generator) < 0.5,
        "block": inner,
        "corner": (rows < height // 2) & (columns < width - 1),
        "all but one": (rows != height // 3) | (columns != 1),
        "checkerboard": (rows + columns) % 2 == 0,
        "none": torch.zeros(height, width, dtype=torch.bool),
    }


def test_it_solves_the_system_written_out_by_hand(monkeypatch):
    monkeypatch.setattr(imputation, "TOLERANCE", 1e-10)
    images = torch.randn(6, 2, 13, 22, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    removed = torch.stack(list(masks(13, 22).values()))
    expected = torch.stack([by_hand(image, mask) for image, mask in zip(images, removed, strict=True)])
    torch.testing.assert_close(impute(images, removed), expected, rtol=0, atol=1e-7)


def test_the_tolerance_is_kept_and_the_batch_changes_nothing():
    """With the default tolerance, within a thousandth of the image's range, for a single image and in a batch."""
    images = torch.randn(6, 3, 26, 38, generator=torch.Generator().manual_seed(3))
    images = torch.nn.functional.avg_pool2d(images, 5, 1, 2)
    removed = torch.stack(list(masks(26, 38).values()))
    found = impute(images, removed)
    ranges = images.amax((1, 2, 3)) - images.amin((1, 2, 3))
    expected = by_hand(images[0].double(), removed[0])
    assert float((found[0] - expected).abs().max()) < 1e-3 * float(ranges[0])
    for k in range(6):
        alone = impute(images[k : k + 1], removed[k : k + 1])[0]
        torch.testing.assert_close(found[k], alone, rtol=0, atol=1e-5 * float(ranges[k]))


IMAGES = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BASELINE = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture
def model() -> nn.Module:
    return LinearScore(1, 12, 12).eval()


def measured(model: nn.Module, maps: Tensor, images: Tensor = IMAGES, baseline: Tensor = BASELINE, **options):
    settings = {"score": "logit", "steps": 12, "controls": False} | options
    return evaluate(model, images, maps, target=0, baseline=baseline, **settings)


@pytest.mark.parametrize("score", ["probability", "logit"])
@pytest.mark.parametrize("steps", [7, 12])
def test_curves_equal_a_loop_over_the_exact_top_pixels(model, score, steps):
    """A second, slow implementation: sort the pixels, replace them one by one, stop at floor(k n / s)."""
    maps = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = measured(model, maps, score=score, steps=steps)
    for n in range(3):
        order = sorted(range(144), key=lambda pixel: -float(maps[n].flatten()[pixel]))
        for k in range(steps + 1):
            removed, shown = IMAGES[n].clone(), BASELINE[n].clone()
            for pixel in order[: k * 144 // steps]:
                row, column = divmod(pixel, 12)
                removed[:, row, column] = BASELINE[n, :, row, column]
                shown[:, row, column] = IMAGES[n, :, row, column]
            logits = model(torch.stack([removed, shown]))
            expected = (logits.softmax(1) if score == "probability" else logits)[:, 0].tolist()
            assert found.curves["deletion"][n, k].item() == pytest.approx(expected[0], abs=1e-12)
            assert found.curves["insertion"][n, k].item() == pytest.approx(expected[1], abs=1e-12)
    for name, curve in found.curves.items():
        torch.testing.assert_close(found.values[name], torch.trapezoid(curve, dim=1) / steps)


def test_road_by_hand(model, monkeypatch):
    """A loop: without the highest and the lowest of each level, imputed by the dense system; half the difference."""
    monkeypatch.setattr(imputation, "TOLERANCE", 1e-12)
    maps = torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = measured(model, maps, metrics="road", options={"road": {"levels": 3, "sigma": 0.0}})
    for n in range(3):
        order = maps[n].flatten().argsort(descending=True)
        for level in range(3):
            count = (level + 1) * 144 // 4
            scores = []
            for pixels in (order[:count], order[144 - count :]):
                removed = torch.zeros(144, dtype=torch.bool)
                removed[pixels] = True
                scores.append(model(by_hand(IMAGES[n], removed.view(12, 12))[None])[0, 0].item())
            assert found.curves["road"][n, level].item() == pytest.approx((scores[1] - scores[0]) / 2, abs=1e-8)
    torch.testing.assert_close(found.values["road"], found.curves["road"].mean(1))
    opposite = measured(model, -maps, metrics="road", options={"road": {"levels": 3, "sigma": 0.0}})
    torch.testing.assert_close(opposite.values["road"], -found.values["road"], rtol=0, atol=1e-8)


def test_m04_the_noise_of_road_is_a_share_of_the_range_and_only_depends_on_its_seed(model):
    maps = torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(5))
    runs = [
        measured(model, maps, metrics="road", options={"road": {"sigma": noise}}, seed=seed).values["road"]
        for noise, seed in ((0.1, 0), (0.1, 0), (0.1, 1), (0.0, 0))
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2]) and not torch.equal(runs[0], runs[3])


def test_average_drop_increase_and_gain_by_hand():
    """Image of 0.5, map of 1 in a quarter: L x has the mean 1/8, so 3/4 of 1/2 is lost and nothing gained.

    The probability of class 0 is the mean of the image.
    """
    bright = Written(lambda _, x: torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], 1).log())
    image, heat = torch.full((1, 1, 4, 4), 0.5), torch.zeros(1, 4, 4)
    heat[0, :2, :2] = 3.0
    metrics = ("average_drop", "average_increase", "average_gain")
    found = evaluate(bright, image, heat - 1, target=0, metrics=metrics, controls=False)
    assert [found.values[name].item() for name in metrics] == pytest.approx([0.75, 0.0, 0.0])
    image[0, :, 2:, 2:] = -0.4  # the network takes any values; without the dark quarter the mean rises
    before, after, heat = image.mean().item(), 0.5 * 12 / 16, torch.ones(1, 4, 4)
    heat[0, 2:, 2:] = 0.0
    found = evaluate(bright, image, heat, target=0, metrics=metrics, controls=False)
    expected = [0.0, 1.0, (after - before) / (1 - before)]
    assert [found.values[name].item() for name in metrics] == pytest.approx(expected)


# Rows M01 to M04 of docs/measurements.md, in which torchcam and pytorch-grad-cam are wrong


def test_m01_a_constant_map_has_no_order():
    """torchcam deletes a constant map from top to bottom: 3/8 for an object at the top, as for the best map."""
    top = Written(lambda _, x: torch.stack([x[:, 0, :8].mean((1, 2)), x.new_zeros(len(x))], 1))
    image = torch.zeros(1, 3, 32, 32)
    image[:, :, :8] = 3.0
    found = measured(top, torch.ones(1, 32, 32), image, "zeros", steps=16)
    assert found.values["deletion"].item() == pytest.approx(1.5, abs=0.05), "half, like a random order"


def test_m02_a_drop_of_a_negative_score_is_not_a_drop():
    """torchcam's share of a negative logit is negative, a gain."""
    net, images, classes = residual().float(), -random_images().float(), [1, 2, 3]
    logits, options = net(images)[range(3), classes], {"target": classes, "score": "logit", "controls": False}
    found = evaluate(net, images, torch.rand(3, 12, 16), metrics="average_drop", **options)
    values = found.values["average_drop"]
    assert values.isnan().tolist() == (logits <= 0).tolist() and bool((logits <= 0).any())
    assert "not above 0" in next(reason for reason in found.reasons["average_drop"] if reason)
    assert bool(((values >= 0) & (values <= 1) | values.isnan()).all())


def test_m03_ties_do_not_remove_more_than_the_level():
    """grad-cam removes all of a map that is zero on three quarters at 80%."""
    image, shown, heat = random_images(1).float(), [], torch.zeros(1, 12, 16)
    heat[:, :6, :8] = torch.rand(1, 6, 8, generator=torch.Generator().manual_seed(1)) + 0.1
    net = residual().float()
    check_once(net, image)
    handle = net.register_forward_pre_hook(lambda model, inputs: shown.extend(inputs[0]))
    evaluate(net, image, heat, metrics="road", target=1, controls=False, batch_size=1)
    handle.remove()
    unchanged = sorted(int((each == image[0]).all(0).sum()) for each in shown)
    assert unchanged[:8] == [192 - 153] * 2 + [192 - 115] * 2 + [192 - 76] * 2 + [192 - 38] * 2
