"""The gallery: every method has an entry, its text is that of the code, and its images are maps of the methods.

`python -m benchmarks.gallery --only` writes the text again.
"""

from __future__ import annotations

import re

from PIL import Image, ImageChops

import explainers
from benchmarks import gallery
from saliscope.zoo import load_model

SIDE = 60
MOST = 1_500_000
"""The largest size of all images together, in bytes."""


def test_every_method_has_an_entry_and_the_text_is_current() -> None:
    """If this fails, run `python -m benchmarks.gallery --only`, with the names of the methods whose maps changed."""
    stored = gallery.PAGE.read_text(encoding="utf-8")
    images = [gallery.open_image(name) for name in gallery.IMAGES]
    assert stored == gallery.page(gallery.predictions(load_model(), images))
    assert sorted(re.findall(r"^`(\w+)` ·", stored, re.M)) == sorted(explainers.METHODS)


def test_the_images_are_those_of_the_page_and_small() -> None:
    shown = set(re.findall(r"\]\(gallery/(\w+)\.webp\)", gallery.PAGE.read_text(encoding="utf-8")))
    files = {path.stem: path for path in gallery.FOLDER.iterdir()}
    assert shown == set(files)
    assert "grad_cam" in shown and "d_rise" not in shown, "the built-in network detects no objects"
    assert len({Image.open(path).size for path in files.values()}) == 1
    assert sum(path.stat().st_size for path in files.values()) <= MOST


def test_maps_are_overlays_on_the_crops() -> None:
    """Oracle: `Explanation.overlay` on the network's crop."""
    model, images = load_model(), [gallery.open_image(name) for name in ("coffee", "cat")]
    drawn = gallery.maps(model, explainers.METHODS["grad_cam"], images, SIDE)
    for column, image in enumerate(images):
        left = column * (SIDE + gallery.GAP)
        crop = model.crop(image).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        expected = explainers.explain("grad_cam", model.network, model.prepare(image)).overlay(crop)[0]
        part = drawn.crop((left, 0, left + SIDE, SIDE))
        assert max(high for _, high in ImageChops.difference(part, expected).getextrema()) <= 2
