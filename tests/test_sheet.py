"""The contact sheet: each cell is the overlay of a method on a photograph, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image, ImageChops

import explainers
from benchmarks import sheet
from models import load_model

SIDE = 60


@pytest.fixture(scope="module")
def model():
    return load_model()


def test_cells_are_the_overlays_in_order(model):
    """Oracle: `Explanation.overlay` on the network's crop, against the sheet's cell at a position computed by hand."""
    photos = [sheet.photograph(name) for name in ("coffee", "goldfish", "cat")]
    methods = [explainers.METHODS[name] for name in ("grad_cam", "input_x_gradient")]

    drawn = sheet.contact_sheet(model, methods, photos, side=SIDE, across=2)

    width = 3 * SIDE + 2 * sheet.GAP
    height = sheet.HEAD + SIDE + sheet.LINES * sheet.LINE + 2 * sheet.GAP
    assert drawn.size == (2 * (width + 3 * sheet.GAP) + sheet.GAP, 2 * (height + sheet.GAP) + sheet.GAP)
    for index, method in enumerate(methods, 1):
        for column, photo in enumerate(photos):
            left = 2 * sheet.GAP + (index % 2) * (width + 3 * sheet.GAP) + column * (SIDE + sheet.GAP)
            top = sheet.GAP + (index // 2) * (height + sheet.GAP) + sheet.HEAD
            seen = model.crop(photo).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            found = explainers.explain(method.name, model.network, model.prepare(photo))
            cell = drawn.crop((left, top, left + SIDE, top + SIDE))
            assert max(high for _, high in ImageChops.difference(cell, found.overlay(seen)[0]).getextrema()) <= 2


def test_a_cell_without_a_map_has_a_caption(model):
    """A method of one value per channel, and one for transformers, have a blank cell with a caption and no map."""
    photo = sheet.photograph("cat")

    for name in ("channel_effects", "attention_rollout"):
        drawn = sheet.entry(model, explainers.METHODS[name], [photo], SIDE)
        cell = drawn.crop((0, sheet.HEAD, SIDE, sheet.HEAD + SIDE))
        colours = {colour for _, colour in cell.getcolors(10_000)}
        assert sheet.BLANK in colours and len(colours) > 5, "a caption on the blank cell"
        assert all(max(colour) - min(colour) < 12 for colour in colours), "grey values alone"


def test_photographs_by_path(tmp_path: Path):
    Image.new("L", (30, 20), 90).save(tmp_path / "holiday.png")

    assert sheet.photograph(str(tmp_path / "holiday.png")).getpixel((3, 4)) == (90, 90, 90)
    with pytest.raises(FileNotFoundError):
        sheet.photograph("no_such_example")
