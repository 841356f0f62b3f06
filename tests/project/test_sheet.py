"""The contact sheet: each cell is the overlay of a method on an image, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image, ImageChops

import explainers
from benchmarks import sheet
from saliscope.zoo import load_model

SIDE = 60


@pytest.fixture(scope="module")
def model():
    return load_model()


def test_cells_are_the_overlays_in_order(model):
    """Oracle: `Explanation.overlay` on the network's crop, against the sheet's cell at a position computed by hand."""
    images = [sheet.open_image(name) for name in ("coffee", "goldfish", "cat")]
    methods = [explainers.METHODS[name] for name in ("grad_cam", "input_x_gradient")]

    drawn = sheet.contact_sheet(model, methods, images, side=SIDE, across=2)

    width = 3 * SIDE + 2 * sheet.GAP
    height = sheet.HEAD + SIDE + sheet.LINES * sheet.LINE + 2 * sheet.GAP
    assert drawn.size == (2 * (width + 3 * sheet.GAP) + sheet.GAP, 2 * (height + sheet.GAP) + sheet.GAP)
    for index, method in enumerate(methods, 1):
        for column, image in enumerate(images):
            left = 2 * sheet.GAP + (index % 2) * (width + 3 * sheet.GAP) + column * (SIDE + sheet.GAP)
            top = sheet.GAP + (index // 2) * (height + sheet.GAP) + sheet.HEAD
            seen = model.crop(image).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            found = explainers.explain(method.name, model.network, model.prepare(image))
            cell = drawn.crop((left, top, left + SIDE, top + SIDE))
            assert max(high for _, high in ImageChops.difference(cell, found.overlay(seen)[0]).getextrema()) <= 2


def test_a_cell_without_a_map_has_a_caption(model):
    """A method with one value per channel, and one for transformers, have a blank cell with a caption."""
    image = sheet.open_image("cat")

    for name in ("channel_effects", "attention_rollout"):
        drawn = sheet.entry(model, explainers.METHODS[name], [image], SIDE)
        cell = drawn.crop((0, sheet.HEAD, SIDE, sheet.HEAD + SIDE))
        colors = {color for _, color in cell.getcolors(10_000)}
        assert sheet.BLANK in colors and len(colors) > 5, "a caption on the blank cell"
        assert all(max(color) - min(color) < 12 for color in colors), "only gray values"


def test_images_by_path(tmp_path: Path):
    Image.new("L", (30, 20), 90).save(tmp_path / "holiday.png")

    assert sheet.open_image(str(tmp_path / "holiday.png")).getpixel((3, 4)) == (90, 90, 90)
    with pytest.raises(FileNotFoundError):
        sheet.open_image("no_such_example")
