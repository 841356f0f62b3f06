"""The contact sheet: each cell is the overlay of a method on an image, or the reason why there is none."""

from __future__ import annotations

from PIL import Image, ImageChops

import explainers
from benchmarks import sheet
from saliscope.zoo import load_model

SIDE = 60


def test_cells_are_overlays_or_captions() -> None:
    """Oracle: `Explanation.overlay` on the network's crop. A method with one value per channel has a blank cell."""
    model, images = load_model(), [sheet.open_image(name) for name in ("coffee", "cat")]
    drawn = sheet.entry(model, explainers.METHODS["grad_cam"], images, SIDE)
    for column, image in enumerate(images):
        left = column * (SIDE + sheet.GAP)
        seen = model.crop(image).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        expected = explainers.explain("grad_cam", model.network, model.prepare(image)).overlay(seen)[0]
        cell = drawn.crop((left, sheet.HEAD, left + SIDE, sheet.HEAD + SIDE))
        assert max(high for _, high in ImageChops.difference(cell, expected).getextrema()) <= 2
    blank = sheet.entry(model, explainers.METHODS["channel_effects"], images, SIDE)
    colors = {color for _, color in blank.crop((0, sheet.HEAD, SIDE, sheet.HEAD + SIDE)).getcolors(10_000)}
    assert sheet.BLANK in colors and len(colors) > 5, "a caption on the blank cell"
