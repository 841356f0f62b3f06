"""Occlusion, against a closed form, a slow loop and captum; grids, superpixels, and what `masks=` may be."""

from __future__ import annotations

import pytest
import torch
from scipy import ndimage

from explainers import BadOption, occlusion
from explainers.perturbation.segments import Parts, blend, grid, parts_of, superpixels
from tests.support.nets import Weighted, curved, random_images, residual, settle
from tests.support.oracles import occlusion_by_hand

CLASSES = [2, 0, 5]


@pytest.mark.parametrize(
    ("window", "stride"),
    [((4, 4), (2, 2)), ((4, 4), (3, 3)), ((5, 3), (5, 3)), ((5, 3), (2, 3)), ((12, 16), (12, 16)), ((1, 1), (1, 1))],
)
def test_occlusion_by_a_slow_loop(window, stride):
    net, x = curved(), random_images()
    found = occlusion(net, x, CLASSES, window=window, stride=stride)
    torch.testing.assert_close(found, occlusion_by_hand(net, x, CLASSES, window, stride), rtol=1e-9, atol=1e-12)


@pytest.fixture
def linear():
    return settle(Weighted((3, 12, 16), 6).double())


def test_a_partial_map_contains_the_evaluated_windows(linear):
    """Stopped early: pixels of evaluated windows have their value, the others are zero."""
    x = random_images(1)
    full = occlusion(linear, x, 1, window=4, stride=4)
    found = occlusion(linear, x, 1, window=4, stride=4, batch_size=1, progress=lambda partial: partial.done < 3)
    tried = found != 0
    assert 0 < tried.sum() < tried.numel()
    torch.testing.assert_close(found[tried], full[tried])


def test_occlusion_agrees_with_captum_after_scaling():
    """captum returns the mean drop of the covering windows: ours times the window area if no window is clipped."""
    captum = pytest.importorskip("captum.attr")
    net, x = residual(), random_images()
    for stride in (4, 2):
        steps = (3, stride, stride)
        theirs = captum.Occlusion(net).attribute(x, (3, 4, 4), strides=steps, target=CLASSES, baselines=0)
        ours = occlusion(net, x, CLASSES, window=4, stride=stride)
        torch.testing.assert_close((ours * 16).float(), theirs[:, 0].float(), rtol=1e-4, atol=1e-5)


# Grids, superpixels and masks


def connected_pieces(labels):
    """Number of 4-connected pieces of each label."""
    return {label: ndimage.label(labels.numpy() == label)[1] for label in labels.unique().tolist()}


def test_grid_by_hand():
    assert grid(3, 5, 2, 2).tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [2, 2, 2, 3, 3]]
    assert torch.equal(grid(4, 6, 4, 6).flatten(), torch.arange(24))
    sizes = torch.bincount(grid(7, 16, 3, 5).flatten())
    assert len(sizes) == 15 and sizes.min() >= 2 * 3 and sizes.max() <= 3 * 4


@pytest.mark.parametrize(("channels", "count"), [(1, 1), (3, 6), (6, 40)])
def test_superpixels_are_connected_and_numbered_without_gaps(channels, count):
    """Noise is the hardest image: nearly every pixel has another nearest center than its neighbor."""
    labels = superpixels(random_images(2, channels, 24, 30), count)
    assert labels.dtype == torch.long and labels.shape == (2, 24, 30)
    for each in labels:
        pieces = connected_pieces(each)
        assert pieces == dict.fromkeys(range(len(pieces)), 1), "a gap, or a region in pieces"
        assert abs(len(pieces) - count) <= max(2, count // 2)
        first = [int((each.flatten() == label).nonzero()[0]) for label in range(len(pieces))]
        assert first == sorted(first), "labels follow the reading order"


def test_superpixels_of_small_and_long_images():
    for size in ((1, 1), (1, 9), (2, 5), (5, 40)):
        for x in (torch.zeros(1, 3, *size), random_images(1, 3, *size)):
            labels = superpixels(x, 50)
            assert labels.min() == 0 and len(connected_pieces(labels[0])) == int(labels.max()) + 1


def test_superpixels_depend_on_neither_units_nor_precision_nor_batch():
    """Rounding changed their number, and with it all random coalitions: Kernel SHAP differed by more than its size."""
    x = (random_images(3, 3, 20, 28) * 16).round() / 16  # exact in all these units, also in bfloat16
    expected = superpixels(x, 12)
    for same in (x * 64 - 3, x / 1024, x.to(memory_format=torch.channels_last)):
        assert torch.equal(superpixels(same, 12), expected)
    assert torch.equal(torch.cat([superpixels(each[None], 12) for each in x]), expected)
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for scaled in (noise, 4 * noise - 2):
        for same in (scaled.bfloat16(), scaled.double()):
            assert torch.equal(superpixels(same), superpixels(scaled))


def test_superpixels_follow_an_edge():
    """Two colors whose border crosses the cells: no region has pixels of both, however faint on a large offset."""
    for offset in (0, 1000):
        image = torch.full((1, 3, 32, 32), float(offset))
        image[:, :, :, 13:] += 1
        labels = superpixels(image, 16, 0.2)[0]
        left, right = set(labels[:, :13].flatten().tolist()), set(labels[:, 13:].flatten().tolist())
        assert left and right and not left & right


def test_pixels_of_an_absent_part_are_hidden():
    """Three overlapping masks on a row of four pixels; the last pixel belongs to none and is always shown."""
    masks = torch.tensor([[[1.0, 1, 0, 0]], [[0, 1, 1, 0]], [[0, 0.5, 0, 0]]])
    present = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 0], [0, 0, 0]]).bool()
    shown = Parts(3, masks=masks).shown(present)[:, 0]
    torch.testing.assert_close(shown, torch.tensor([[1.0, 1, 1, 1], [0, 0, 1, 1], [1, 0.5, 1, 1], [0, 0, 0, 1]]))


def test_blend_is_exact_at_zero_and_one():
    x, cover = random_images(2).float()
    shown = torch.tensor([0.0, 1.0, 0.25]).view(3, 1, 1).expand(3, 12, 16)
    found, sharp = blend(x, cover, shown), blend(x, cover, shown > 0.5)
    assert torch.equal(found[0], cover) and torch.equal(found[1], x)
    torch.testing.assert_close(found[2], cover + 0.25 * (x - cover))
    assert torch.equal(sharp[1], x) and torch.equal(sharp[2], cover)


def test_p104_masks_of_any_strides_and_labels_with_gaps_that_differ_by_image():
    """A feature mask made by `expand` breaks the `view` in captum."""
    x = random_images(2)
    labels = (torch.arange(12) // 3)[:, None].expand(12, 16)
    assert 0 in labels.stride()
    assert torch.equal(parts_of(labels, x)[0].labels, parts_of(labels.contiguous(), x)[0].labels)
    masks = torch.stack([labels == each for each in range(4)])
    turned = masks.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    for one in (turned, masks[None].expand(2, 4, 12, 16), masks[:, ::1]):
        assert all(torch.equal(parts.masks, masks.double()) for parts in parts_of(one, x))
    first, second = parts_of(torch.stack([7 * grid(12, 16, 2, 2) - 3, grid(12, 16, 1, 3)]), x)
    assert (first.count, second.count) == (4, 3) and torch.equal(first.labels, grid(12, 16, 2, 2))


def test_impossible_grids_superpixels_and_masks_are_refused():
    for rows, columns in ((0, 2), (13, 2), (2, 17)):
        with pytest.raises(BadOption, match="12 x 16"):
            grid(12, 16, rows, columns)
    for count, compactness in ((0, 0.2), (5, 0.0), (2.5, 0.2)):
        with pytest.raises(BadOption, match="count"):
            superpixels(random_images(1), count, compactness)
    sizes = ((2, 12, 15), (1, 12, 16), (12, 16), (3, 1, 12, 16))
    values = [torch.full((1, 12, 16), 2.0), torch.full((1, 12, 16), torch.nan), torch.zeros(5, 12, 16).long()]
    for given in (True, 0, (2, 3, 4), (13, 2), 3.5, *map(torch.zeros, sizes), *values):
        with pytest.raises(BadOption):
            parts_of(given, random_images(2))
    with pytest.raises(BadOption, match="'superpixels'"):
        parts_of("superpixel", random_images(1))
