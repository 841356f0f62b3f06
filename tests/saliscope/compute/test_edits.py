"""Edits of an image by hand: fills, positions, colors, regions and their text."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from explainers import baseline_of
from saliscope.compute.erase import edit, tensors
from saliscope.compute.erase.edit import Box, Edit, Highest, Invert, Stroke, Whole, parse
from saliscope.compute.erase.tensors import region_mask
from saliscope.errors import Refused


def square(side: int, low: int, high: int) -> torch.Tensor:
    mask = torch.zeros(side, side, dtype=torch.bool)
    mask[low:high, low:high] = True
    return mask


def random_image(height: int = 12, width: int = 12, channels: int = 3) -> torch.Tensor:
    return torch.rand(1, channels, height, width, generator=torch.Generator().manual_seed(1))


# Fills


def test_inpainting_continues_a_ramp() -> None:
    """A linear ramp is the mean of its neighbors everywhere, also at a border that it does not rise towards."""
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    for low, high in ((10, 20), (2, 38), (0, 30)):
        ramp, mask = torch.stack([columns, 3 * columns + (rows if low else 0 * rows)])[None], square(40, low, high)
        if not low:
            mask[:, :5] = False  # the slope ends at the border of the image, so that only rows touch it
        found = tensors.fill_region(ramp, mask, "inpaint")
        assert (found - ramp).abs().max() < 0.002 * (ramp.max() - ramp.min()), (low, high)


def test_an_inpainted_pixel_is_the_mean_of_its_neighbors() -> None:
    """Oracle: the linear system of these means, solved directly; also at the corners of the image."""
    pixels, mask = random_image(9, 11), torch.rand(9, 11, generator=torch.Generator().manual_seed(2)) < 0.6
    mask[0, 0] = mask[8, 10] = True
    cells = mask.nonzero().tolist()
    matrix, right = torch.zeros(len(cells), len(cells)), torch.zeros(len(cells), 3)
    for k, (row, column) in enumerate(cells):
        for down, across in itertools.product((-1, 0, 1), repeat=2):
            y, x, weight = row + down, column + across, 1 / 6 if 0 in (down, across) else 1 / 12
            if (down, across) == (0, 0) or not (0 <= y < 9 and 0 <= x < 11):
                continue
            matrix[k, k] += weight
            if [y, x] in cells:
                matrix[k, cells.index([y, x])] -= weight
            else:
                right[k] += weight * pixels[0, :, y, x]
    expected = torch.linalg.solve(matrix, right)

    assert torch.allclose(tensors.inpaint(pixels, mask)[0][:, mask].T, expected, atol=1e-3)


def test_fills_show_their_image_and_leave_the_rest() -> None:
    pixels, second, mask = random_image(), random_image().flip(-1), square(12, 3, 9)
    mean = pixels.mean((2, 3), keepdim=True).expand_as(pixels)
    blur, noise = (baseline_of(pixels, fill) for fill in ("blur", "noise"))
    for fill, cover in {"mean": mean, "blur": blur, "noise": noise, "image": second, "inpaint": None}.items():
        found = tensors.fill_region(pixels, mask, fill, second)
        assert torch.equal(found[..., ~mask], pixels[..., ~mask]), fill
        assert cover is None or torch.equal(found[..., mask], cover[..., mask]), fill
    for fill, covered, other, message in (
        ("inpaint", torch.ones_like(mask), None, "no pixel is left"),
        ("image", mask, None, "No second image"),
        ("image", mask, random_image(8), "has 3 × 8 × 12 values.*the first has 3 × 12 × 12"),
    ):
        with pytest.raises(Refused, match=message):
            tensors.fill_region(pixels, covered, fill, other)


# The whole image


def test_right_angles_and_flips_are_exact() -> None:
    pixels = random_image()
    for degrees in (-180, -90, 0, 90, 180):
        assert torch.equal(tensors.rotate(pixels, degrees), torch.rot90(pixels, degrees // 90, (-2, -1))), degrees
    for name, axes in (("x", [-1]), ("y", [-2]), ("xy", [-1, -2])):
        assert torch.equal(tensors.move(pixels, Whole(flip=name)), pixels.flip(axes)), name


def test_rotation_is_counterclockwise_and_keeps_the_size() -> None:
    """Oracle: Pillow's bilinear rotation, inside the circle that has content; and the mean color in the corners."""
    pixels = functional.gaussian_blur(random_image(40, 40, 1), 9, 3.0)
    found = tensors.rotate(pixels, 30)
    rotated = Image.fromarray(pixels[0, 0].numpy(), "F").rotate(30, Image.Resampling.BILINEAR)
    oracle = torch.from_numpy(np.array(rotated))
    rows, columns = torch.meshgrid(torch.arange(40) - 19.5, torch.arange(40) - 19.5, indexing="ij")
    inside = (rows**2 + columns**2).sqrt() < 17

    assert (found[0, 0] - oracle)[inside].abs().max() < 0.01
    assert torch.isclose(found[0, 0, 0, 0], pixels.mean(), atol=1e-6) and found.shape == pixels.shape
    wide = random_image(10, 20)
    assert tensors.rotate(wide, 90).shape == wide.shape
    assert torch.allclose(tensors.rotate(wide, 90)[..., 5:15], torch.rot90(wide[..., 5:15], 1, (-2, -1)), atol=1e-5)


def test_shift_by_hand() -> None:
    pixels = torch.arange(9.0).view(1, 1, 3, 3)
    assert tensors.shift(pixels, 1, -1).view(3, 3).tolist() == [[4, 3, 4], [4, 6, 7], [4, 4, 4]]
    assert tensors.shift(pixels, -2, 0).view(3, 3).tolist() == [[2, 4, 4], [5, 4, 4], [8, 4, 4]]
    with pytest.raises(Refused, match="Shift -3 is .* Give -2 to 2 pixels"):
        tensors.shift(pixels, 0, -3)


def test_colors_by_hand() -> None:
    """Oracle: torchvision's brightness and contrast, and Pillow's JPEG."""
    pixels = random_image(16, 16)
    bright = tensors.recolor(pixels, Whole(brightness=150))
    contrast = tensors.recolor(pixels, Whole(contrast=40))
    noisy = tensors.recolor(pixels, Whole(noise=10))
    file = io.BytesIO()
    Image.fromarray((pixels[0] * 255).round().byte().permute(1, 2, 0).numpy()).save(file, "JPEG", quality=20)
    coarse = functional.to_tensor(Image.open(file))[None]

    assert torch.allclose(bright, functional.adjust_brightness(pixels, 1.5))
    assert torch.allclose(contrast, functional.adjust_contrast(pixels, 0.4), atol=1e-4)  # it rounds the weights of gray
    assert torch.equal(tensors.recolor(pixels, Whole(jpeg=20)), coarse)
    assert 0.05 < (noisy - pixels).std() < 0.1 and noisy.min() >= 0 and noisy.max() <= 1  # clipped at both ends
    assert torch.equal(noisy, tensors.recolor(pixels, Whole(noise=10)))
    assert torch.equal(tensors.recolor(pixels, Whole()), pixels)
    gray, mean = pixels[:, :1], pixels[:, :1].mean()
    assert torch.allclose(tensors.recolor(gray, Whole(contrast=40)), mean + 0.4 * (gray - mean))


# Regions


def test_a_stroke_has_the_pixels_near_its_line() -> None:
    """Oracle: the distance of every pixel center from 2,000 points on the line, which is not square in pixels."""
    stroke = Stroke(((0.1, 0.2), (0.7, 0.4), (0.9, 0.9)), 0.12)
    mask = region_mask([stroke], (30, 50))
    parts = torch.linspace(0, 1, 1000)[:, None]
    points = torch.tensor(stroke.points) * torch.tensor([50.0, 30.0])
    line = torch.cat([points[k] + parts * (points[k + 1] - points[k]) for k in range(2)])
    rows, columns = torch.meshgrid(torch.arange(30) + 0.5, torch.arange(50) + 0.5, indexing="ij")
    nearest = torch.cdist(torch.stack([columns, rows], -1).view(-1, 2), line).amin(1).view(30, 50)
    clear = (nearest - 0.12 * 30).abs() > 0.01

    assert torch.equal(mask[clear], (nearest < 0.12 * 30)[clear]) and mask.sum() > 100


def test_operations_are_applied_in_order() -> None:
    left, top = Box(((0.0, 0.0), (0.5, 1.0))), Box(((1.0, 0.5), (0.0, 0.0)), add=False)
    order = torch.arange(16).view(4, 4).flip(0)  # the last row has the highest values

    assert region_mask([left, top], (4, 4)).int().tolist() == [[0] * 4] * 2 + [[1, 1, 0, 0]] * 2
    assert region_mask([top, left], (4, 4)).int().tolist() == [[1, 1, 0, 0]] * 4
    assert region_mask([left, Invert()], (4, 4)).int().tolist() == [[0, 0, 1, 1]] * 4
    assert region_mask([Highest(count=5)], (4, 4), order).int().tolist() == [[0] * 4] * 2 + [[1, 0, 0, 0], [1] * 4]
    assert int(region_mask([Highest(share=0.25)], (4, 4), order).sum()) == 4
    assert int(region_mask([Highest(share=0.001)], (4, 4), order).sum()) == 1
    assert not region_mask([Box(((0.3, 0.3), (0.32, 0.32)))], (4, 4)).any(), "no center of a pixel is inside"
    with pytest.raises(Refused, match="no order"):
        region_mask([Highest(count=5)], (4, 4))


# The text


def test_the_text_of_an_edit() -> None:
    found = parse(
        "brush.0c.0000zzzz_unbox.0000zz00_top.125_first.7_invert_fill.mean_flip.xy_rotate.-90_shift.3.-4_jpeg.20"
    )
    stroke, box = Stroke(((0.0, 0.0), (1.0, 1.0)), 38 / edit.FINEST), Box(((0.0, 0.0), (1.0, 0.0)), add=False)
    changes = Whole(flip="xy", rotate=-90, shift=(3, -4), jpeg=20)

    assert found == Edit((stroke, box, Highest(share=0.125), Highest(count=7), Invert()), "mean", changes)
    assert parse("") == Edit() and Edit().is_empty and not found.is_empty and found.needs_map


WRONG = [
    ("rotate.181", "Rotation 181 is out of range. Give -180 to 180 degrees"),
    ("jpeg.0", "JPEG quality 0 is out of range. Give 1 to 100."),
    ("top.1001", "The part of the map 100.1 is out of range. Give 0.1 to 100 percent"),
    ("top.", "needs a whole number, not “”"),
    ("rotate.1.5", "Rotation needs a whole number, not “1.5”"),
    ("shift.3", "Shift needs 2 whole numbers"),
    ("brush.00.0000", "size 0"),
    ("brush.0c.00-0", "not part of an edit"),
    ("box.00000000.0000", "not part of an edit"),
    ("fill.red", "not part of an edit"),
    ("rotate.٣", "needs a whole number"),
    ("invert_" * 2000, "at most 12,000"),
]


def test_a_wrong_edit_says_why() -> None:
    for text, message in WRONG:
        with pytest.raises(Refused, match=message):
            parse(text)
            pytest.fail(f"{text} is accepted")
