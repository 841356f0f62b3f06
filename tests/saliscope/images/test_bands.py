"""Images with N bands: value ranges, displayed bands, and inputs of networks with C channels."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import explainers
from saliscope import limits
from saliscope.compute import engine, model_cache
from saliscope.compute.answers import Answer, LoadedModel
from saliscope.compute.erase import engine as erase
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.images import bands
from saliscope.zoo import Model, Preparation
from tests.saliscope.compute.asking import last_steps
from tests.support.band_files import npy_file, tiff_file, values
from tests.support.nets import plain

RANGES = [
    ("u1", 255, False, 1 / 255, "0 to 255 are divided by 255, the largest value of the type"),
    ("i2", 32767, False, 1 / 32767, "-32768 to 32767 are divided by 32,767"),
    ("u2", 4000, False, 1 / 65535, "therefore close to 0; if the network was trained"),
    ("f4", 1, False, 1, "0 to 1 are unchanged"),
    ("u2", 4000, True, 1, "the network's mean and std are in that unit"),
    ("f4", 4000.5, True, 1, "0 to 4000.5 are unchanged"),
]
"""Type, largest value, whether the network takes raw values, the factor, and its description."""


def test_range_of_values() -> None:
    for kind, largest, raw, factor, description in RANGES:
        array = np.array(
            [[-32768 if kind == "i2" else 0, 0.5 if largest == 1 else 51], [0.25 * largest, largest]], kind
        )
        actual, how = bands.scale_values(array[None], raw)
        np.testing.assert_allclose(actual[0], array.astype("f8") * factor, rtol=1e-6, err_msg=description)
        assert actual.dtype == "float32" and description in how


def test_other_values_are_mapped_from_minimum_to_maximum() -> None:
    actual, how = bands.scale_values(np.array([[[-2, 3], [8, 0]]], "f4"), False)
    np.testing.assert_allclose(actual[0], [[0, 0.5], [1, 0.2]])
    assert "-2 to 8 are mapped to 0 to 1" in how
    for number in (np.nan, np.inf, -np.inf):
        actual, how = bands.scale_values(np.array([[[-2, number], [8, 0]]], "f4"), False)
        np.testing.assert_allclose(actual[0], [[0, 0], [1, 0.2]])
        assert "non-finite values are set to the minimum" in how
    np.testing.assert_array_equal(bands.scale_values(np.full((1, 2, 2), 7.0), False)[0], np.zeros((1, 2, 2)))
    np.testing.assert_array_equal(bands.scale_values(np.full((1, 2, 2), np.nan), False)[0], np.zeros((1, 2, 2)))
    np.testing.assert_allclose(bands.scale_values(np.array([[[0, 100], [50, 25]]], "i8"), False)[0][0, 0], [0, 1])


DISPLAYED: list[tuple[str, int, int, Any, bool]] = [
    ("", 5, 5, (1, 2, 3), False),
    ("", 13, 13, (4, 3, 2), False),
    ("", 13, 3, (4, 3, 2), False),
    ("", 5, 1, (1, 1, 1), False),
    ("", 3, 1, (1, 2, 3), False),
    ("", 2, 2, (1, 2, 2), False),
    ("5, 3,1", 5, 5, (5, 3, 1), False),
    ("5,3,1 of 5", 5, 5, (5, 3, 1), False),
    ("5,3,1 of 13", 5, 5, (1, 2, 3), False),
    ("6,3,1", 5, 5, (1, 2, 3), True),
    ("0,3,1", 5, 5, (1, 2, 3), True),
    ("<img>", 5, 5, (1, 2, 3), True),
]
"""Requested bands, bands of the file, channels of the network, displayed bands, and whether there is a note."""


def test_displayed_bands() -> None:
    for requested, count, channels, expected, noted in DISPLAYED:
        three, note = bands.choose_bands(requested, count, channels)
        assert three == expected and bool(note) == noted, (requested, count, channels)
        assert not noted or f"bands 1 to {count}" in note


def test_bands_of_each_network() -> None:
    """N channels: all bands in order. Three: the selected bands. One: their luminance, or the band itself."""
    array = values("u1", 5)
    data = tiff_file(array)
    whole = bands.open_bands(data, 5, requested="5,4,3")
    colors = bands.open_bands(data, 3, requested="5,1,2")
    gray, luma = bands.open_bands(data, 1, requested="4,4,4"), bands.open_bands(data, 1, requested="1,2,3")

    np.testing.assert_allclose(whole.values, array / 255, rtol=1e-6)
    np.testing.assert_allclose(colors.values, array[[4, 0, 1]] / 255, rtol=1e-6)
    np.testing.assert_allclose(gray.values, array[[3]] / 255, rtol=1e-6)
    gray_image = Image.fromarray(np.moveaxis(array[:3], 0, -1))
    assert np.abs(luma.values[0] * 255 - np.asarray(gray_image.convert("L"))).max() <= 1
    assert whole.image.size == (50, 33) and whole.choice.text == "5,4,3 of 5"
    assert "all 5 bands" in whole.choice.use and "these three" in colors.choice.use
    with pytest.raises(Refused, match="needs 4 bands, but the image has 5. Use a TIFF or NPY file with 4 bands"):
        bands.open_bands(data, 4)


def test_displayed_image_is_stretched_between_percentiles() -> None:
    ramp = np.linspace(1000, 1200, 33 * 50).reshape(33, 50).astype("u2")
    ramp[0, 0], ramp[0, 1] = 65535, 0
    found = bands.open_bands(npy_file(np.stack([ramp] * 5)), 5)
    low, high = np.percentile(ramp, [2, 98])
    expected = ((ramp.astype("f8") - low) / (high - low) * 255).clip(0, 255)
    np.testing.assert_allclose(np.asarray(found.image)[..., 0], expected, atol=1)
    plain = bands.open_bands(npy_file(values("u1", 3)), 3)
    assert plain is not None  # eight bits of red, green and blue are an image already
    np.testing.assert_array_equal(np.moveaxis(np.asarray(plain.image), -1, 0), values("u1", 3))


def test_ordinary_images_are_not_bands() -> None:
    """For a network with three channels, an ordinary TIFF image is read like any other upload."""
    rgb, gray = Image.new("RGB", (9, 8), "red"), Image.new("L", (9, 8), 7)
    for image, kind in itertools.product((rgb, gray, rgb.convert("RGBA"), rgb.convert("CMYK")), ("TIFF", "PNG")):
        if (image.mode, kind) == ("CMYK", "PNG"):
            continue
        file = io.BytesIO()
        image.save(file, kind)
        assert bands.open_bands(file.getvalue(), 3) is None
    assert bands.open_bands(tiff_file(values("u2", 3), colors=2), 3) is None
    assert bands.open_bands(b"", 3) is None and bands.open_bands(b"text", 5) is None
    near_infrared = bands.open_bands(tiff_file(values("u1", 4), colors=2, extra=(0,)), 3)
    assert near_infrared is not None and near_infrared.choice.count == 4
    transparent = tiff_file(values("u1", 4), colors=2, extra=(2,))  # how many programs write red, green, blue, infrared
    assert bands.open_bands(transparent, 3) is None
    four = bands.open_bands(transparent, 4)
    assert four is not None and len(four.values) == 4


def test_a_large_image_is_reduced_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SIDE", 20)
    found = bands.open_bands(npy_file(np.full((5, 60, 90), 51, "u1")), 5)

    assert found.values.shape == (5, 20, 30) and found.image.size == (30, 20)
    np.testing.assert_allclose(found.values, 0.2, rtol=1e-6)


# Through the engine and the page


def model(channels: int) -> Model:
    """Return a model with four classes at 32 pixels."""
    network = plain(channels, classes=4).float().eval().requires_grad_(False)
    preparation = Preparation(32, 36, (0.4,) * channels, (0.2,) * channels)
    return Model(f"bands{channels}", network, ["forest", "water", "field", "town"], preparation)


def install(channels: int, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """Install this model as the only one of the page."""
    made, images = model(channels), torch.zeros(1, channels, 32, 32)
    layers = explainers.list_layers(made.network, images, spatial=True)
    default = explainers.default_layer(made.network, images)
    found = LoadedModel(made.name, made.name, made, made.labels, layers, default, torch.device("cpu"))
    monkeypatch.setattr(model_cache, "first_model", lambda: made.name)
    monkeypatch.setattr(model_cache, "load", lambda *_: found)
    monkeypatch.setattr(model_cache, "wait", lambda *_: iter(()))
    return found


def test_network_receives_the_bands_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Oracle: `Model.prepare` of the same array. Unknown bands are noted."""
    loaded, array = install(5, monkeypatch), values("u2", 5, 40, 60)
    last_axis = npy_file(np.moveaxis(array, 0, -1))
    for name, data in (("a.tif", tiff_file(array)), ("b.npy", npy_file(array)), ("c.npy", last_axis)):
        (tmp_path / name).write_bytes(data)
        request = Request(str(tmp_path / name), bands="7,7,7")
        settings, shown, images = engine.load_input(engine.resolve(request), request)
        torch.testing.assert_close(images, loaded.model.prepare(array))
        assert shown.size == (60, 40) and settings.bands is not None and settings.bands.three == (1, 2, 3)
        assert any("Unknown bands '7,7,7'" in note for note in settings.notes)
    some = [last_steps(replace(request, bands=bands))[Answer].settings for bands in ("7,7,7", "1,2,3", "3,2,1")]
    assert len({each.key for each in some}) == len({each.subject for each in some}) == 2, "of the bands that are shown"


def test_edits_of_bands_are_shown_in_their_colors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Oracle: Pillow, on the crop at the size of the network."""
    install(5, monkeypatch)
    (tmp_path / "a.npy").write_bytes(npy_file(values("u2", 5, 40, 60)))
    request = Request(str(tmp_path / "a.npy"), bands="3,2,1", edit="flip.x")
    before = last_steps(replace(request, edit=""))[Answer]
    after = last_steps(request, erase.explain, stages=False)[Answer]
    mirrored = before.crop.resize((32, 32), Image.Resampling.BICUBIC).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert after.crop.tobytes() == mirrored.tobytes()
    with pytest.raises(Refused, match="bands"):
        last_steps(replace(request, edit="brightness.50"), erase.explain, stages=False)


def test_one_channel_network_receives_all_bits_of_a_png() -> None:
    """The input equals that of a TIFF with the same values; a network with three channels receives 8 bits."""
    array, file = values("u2", 1, 40, 60), io.BytesIO()
    Image.fromarray(array[0]).save(file, "PNG")
    deep, flat = bands.open_bands(file.getvalue(), 1), bands.open_bands(tiff_file(array), 1)
    np.testing.assert_array_equal(deep.values, flat.values)
    np.testing.assert_allclose(deep.values, array / 65535, rtol=1e-6)
    assert bands.open_bands(file.getvalue(), 3) is None
    with pytest.raises(Refused, match="This PNG image is damaged"):
        bands.open_bands(file.getvalue()[:-999], 1)


@pytest.mark.parametrize(
    "channels, requested, kind", [(5, "3,2,1", "u2"), (3, "5,1,2", "u1"), (1, "4,4,4", "u1"), (1, "1,2,5", "u2")]
)
def test_snippet_prepares_the_same_images(
    channels: int, requested: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from saliscope.page.api import snippets

    loaded = install(channels, monkeypatch)
    monkeypatch.setattr("saliscope.zoo.catalog.load_model", lambda name: loaded.model)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.npy").write_bytes(npy_file(values(kind, 5, 40, 60)))
    request = Request("image.npy", bands=requested)
    settings, _, images = engine.load_input(engine.resolve(request), request)
    python, library, shell = (item["code"] for item in snippets.snippets(settings)["items"])
    names: dict[str, Any] = {}
    exec(library, names)
    torch.testing.assert_close(names["images"], images, rtol=0, atol=0.02)
    assert f"bands='{requested}'" in python and f'"{requested}"]' in shell
    assert "photo.jpg" not in python + library + shell
