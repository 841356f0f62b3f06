"""Pictures of maps: what is drawn is computed by hand, and what must not be drawn is looked for."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from PIL import Image
from torch import Tensor

from explainers.overlays import BLUE, RED, colour_bar, colour_limits, colour_map, overlay, sprite

# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
BLINDNESS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def grey(value: int = 51, size: tuple[int, int] = (12, 8)) -> Image.Image:
    return Image.new("RGB", size, (value, value, value))


def values_of(picture: Image.Image) -> list[tuple[int, ...]]:
    data, step = picture.tobytes(), len(picture.getbands())
    return [tuple(data[i : i + step]) for i in range(0, len(data), step)]


def noise(mode: str = "RGB", size: tuple[int, int] = (13, 9)) -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    values = torch.randint(0, 256, (size[0] * size[1] * channels,), generator=torch.Generator().manual_seed(0))
    return Image.frombytes(mode, size, bytes(values.tolist()))


def lab(colours: Tensor) -> Tensor:
    """CIE L*a*b* of linear RGB in [0, 1], by the definition."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = colours @ torch.tensor(to_xyz, dtype=torch.float64).T / torch.tensor([0.9505, 1.0, 1.089])
    f = torch.where(xyz > (6 / 29) ** 3, xyz.clamp(min=1e-9) ** (1 / 3), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return torch.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def linear(table: Tensor) -> Tensor:
    values = table.double() / 255
    return torch.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("name", ["magma", "viridis"])
def test_tables_are_those_everybody_knows(name):
    """Oracle: the public table of 256 colours."""
    matplotlib = pytest.importorskip("matplotlib")
    expected = (torch.tensor(matplotlib.colormaps[name].colors) * 255).round().to(torch.uint8)

    assert torch.equal(colour_map(name), expected)


def test_tables_end_as_published():
    """Oracle: first and last colours as published (0.001462, 0.000466, 0.013866 …), written down by hand."""
    ends = {name: colour_map(name)[[0, 255]].tolist() for name in ("magma", "viridis")}

    assert ends == {"magma": [[0, 0, 4], [252, 253, 191]], "viridis": [[68, 1, 84], [253, 231, 37]]}


@pytest.mark.parametrize("name", ["magma", "viridis"])
def test_sequential_tables_grow_lighter_all_the_way(name):
    """A higher value must never look darker, also in print and to any eye."""
    lightness = lab(linear(colour_map(name)))[:, 0]

    assert (lightness.diff() > -0.05).all()
    assert lightness[-1] - lightness[0] > 70


def test_signed_table_has_white_at_zero_and_mirrored_ends():
    """By hand: entry 128 is white; entries 128 - k and 128 + k are the two ends mixed with white by k / 127."""
    table = colour_map("signed")

    assert table[128].tolist() == [255, 255, 255] and round(255 * 0.5) == 128
    assert table[0].tolist() == table[1].tolist() == list(BLUE) and table[255].tolist() == list(RED)
    for k in (1, 40, 127):
        mixed = [round(255 + (end - 255) * k / 127) for end in BLUE + RED]
        assert table[128 - k].tolist() + table[128 + k].tolist() == mixed


@pytest.mark.parametrize("kind", ["normal", *BLINDNESS])
def test_signed_ends_stay_apart_for_every_eye(kind):
    """Oracle: Machado et al. 2009. From a quarter of the range on the signs differ by CIE76 > 10 (2.3 is just seen)."""
    table = linear(colour_map("signed"))
    if kind in BLINDNESS:
        table = (table @ torch.tensor(BLINDNESS[kind], dtype=torch.float64).T).clamp(0, 1)
    colours = lab(table)

    k = torch.arange(32, 128)
    distance = torch.linalg.vector_norm(colours[128 - k] - colours[128 + k], dim=1)
    from_white = colours[128, 0] - colours[:, 0]

    assert distance.min() > 10, distance.min()
    assert distance.max() > 60
    assert abs(float(from_white[1] - from_white[255])) < 20, "neither sign may look much stronger"
    assert (from_white[128:].diff() > -0.05).all() and (from_white[1:129].diff() < 0.05).all()


def test_unknown_colour_map_names_the_nearest():
    with pytest.raises(ValueError, match="'viridis'"):
        colour_map("virdis")


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("map", [torch.rand(3, 4), -torch.rand(3, 4), torch.full((2, 2), torch.nan)])
def test_p28_opacity_zero_is_the_photograph_to_the_bit(mode, map):
    """Row P28: a peer turns the photograph white there."""
    photo = noise(mode)

    assert overlay(photo, map, opacity=0).tobytes() == photo.tobytes()


def test_p28_blank_map_draws_nothing_bright():
    """Row P28, by hand: half of (51, 51, 51) and half of magma's (0, 0, 4); a peer gives (72, 72, 255)."""
    drawn = overlay(grey(), torch.zeros(2, 2))

    assert set(values_of(drawn)) == {(26, 26, 28)}


@pytest.mark.parametrize("opacity", [0.3, 1.0])
def test_blank_signed_map_leaves_the_photograph(opacity):
    """Zero is no evidence either way, so nothing may be painted, whatever the opacity."""
    photo = noise()

    assert overlay(photo, torch.zeros(2, 2), colours="signed", opacity=opacity).tobytes() == photo.tobytes()


def test_p20_flat_positive_map_is_drawn_evenly_and_not_erased():
    """Row P20: peers subtract the minimum and show nothing. By hand: magma's last colour, half and half."""
    drawn = overlay(grey(), torch.full((3, 3), 0.25))

    assert set(values_of(drawn)) == {(round((51 + 252) / 2), 152, 121)}


def test_full_opacity_is_the_colour_map_of_the_map():
    """By hand: a picture as large as its map needs no interpolation; a quarter of the range is entry 64."""
    drawn = overlay(noise(size=(2, 1)), torch.tensor([[1.0, 4.0]]), opacity=1)

    table = colour_map("magma").tolist()
    assert values_of(drawn) == [tuple(table[64]), tuple(table[255])]


def test_rows_and_columns_stay_what_they_are():
    """One bright cell at the top right of a wide map on a wide photograph."""
    map = torch.zeros(2, 3)
    map[0, 2] = 1

    drawn = overlay(grey(size=(30, 20)), map, opacity=1)

    assert drawn.size == (30, 20)
    brightest = max(itertools.product(range(30), range(20)), key=lambda at: sum(drawn.getpixel(at)))
    assert brightest[0] >= 24 and brightest[1] <= 5


def test_signed_overlay_on_white_paper_is_the_table():
    """Identity: on white, paint of growing opacity gives the blue-white-red table (one level of rounding)."""
    ramp = ((torch.arange(256.0) - 128) / 127)[None, 1:]

    drawn = overlay(Image.new("RGB", (255, 1), "white"), ramp, opacity=1)

    actual = torch.tensor(values_of(drawn))
    assert (actual - colour_map("signed")[1:].long()).abs().max() <= 1


def test_signed_by_hand():
    """By hand: -1 of 2 is half blue: 100 + (33 - 100) / 2 = 66.5 … at opacity 1, a quarter at 0.5; +2 is full red."""
    photo = Image.new("RGB", (2, 1), (100, 100, 100))

    drawn = overlay(photo, torch.tensor([[-1.0, 2.0]]), opacity=0.5)

    left = tuple(round(100 + (end - 100) / 4) for end in BLUE)
    right = tuple(round(100 + (end - 100) / 2) for end in RED)
    assert values_of(drawn) == [left, right]


def test_limits_make_pictures_comparable_and_clip():
    """By hand: with limits (0, 2) a 1 is the middle of the table whatever else is on the map, and 5 is the end."""
    drawn = overlay(noise(size=(2, 1)), torch.tensor([[1.0, 5.0]]), opacity=1, limits=(0, 2))

    table = colour_map("magma").tolist()
    assert values_of(drawn) == [tuple(table[128]), tuple(table[255])]


def test_signed_limits_keep_zero_in_the_middle():
    """By hand: limits (-1, 4) reach to 4 on both sides, so -1 is a quarter blue."""
    drawn = overlay(Image.new("RGB", (1, 1), "white"), torch.tensor([[-1.0]]), opacity=1, limits=(-1, 4))

    assert drawn.getpixel((0, 0)) == tuple(round(255 + (end - 255) / 4) for end in BLUE)


def test_p24_what_is_not_finite_is_striped_and_does_not_set_the_range():
    """Row P24: never a clean-looking map. Stripes of black and white; the finite part keeps its own range."""
    map = torch.ones(1, 40)
    map[0, :20] = torch.inf
    map[0, 5] = torch.nan

    drawn = values_of(overlay(grey(size=(40, 1)), map, opacity=1))

    assert set(drawn[:19]) == {(0, 0, 0), (255, 255, 255)}
    assert set(drawn[21:]) == {(252, 253, 191)}


def test_all_nan_is_striped():
    drawn = overlay(grey(), torch.full((2, 2), torch.nan), opacity=1)

    assert set(values_of(drawn)) == {(0, 0, 0), (255, 255, 255)}


@pytest.mark.parametrize(("map", "expected"), [
    (torch.tensor([[1.0, 3.0]]), ("magma", 0.0, 3.0)),
    (torch.tensor([[-1.0, 3.0]]), ("signed", -3.0, 3.0)),
    (torch.tensor([[-4.0, -1.0]]), ("signed", -4.0, 4.0)),
    (torch.zeros(2, 2), ("magma", 0.0, 1.0)),
    (torch.tensor([[torch.nan, 2.0], [torch.inf, 0.0]]), ("magma", 0.0, 2.0)),
    (torch.full((1, 1), 1e-30), ("magma", 0.0, pytest.approx(1e-30))),
])
def test_range_is_tied_to_zero(map, expected):
    assert colour_limits(map) == expected


def test_sequential_by_name_begins_at_the_smallest_value():
    assert colour_limits(torch.tensor([[-1.0, 3.0]]), "viridis") == ("viridis", -1.0, 3.0)


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "YCbCr", "LA", "PA"])
def test_every_8_bit_photograph_is_taken(mode):
    photo = noise("RGB").convert("L").convert(mode) if mode in ("P", "1", "LA", "PA") else noise(mode)

    drawn = overlay(photo, torch.rand(3, 3), opacity=0.4)

    assert drawn.size == photo.size and drawn.mode == ("RGBA" if mode in ("LA", "PA") else "RGB")


def test_transparency_stays():
    photo = noise("RGBA")

    drawn = overlay(photo, torch.rand(3, 3))

    assert drawn.getchannel("A").tobytes() == photo.getchannel("A").tobytes()
    assert drawn.convert("RGB").tobytes() != photo.convert("RGB").tobytes()


def test_inputs_are_not_changed():
    photo, map = noise(), torch.rand(3, 3)
    before, values = photo.tobytes(), map.clone()

    overlay(photo, map)

    assert photo.tobytes() == before and torch.equal(map, values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_float_map(dtype):
    map = torch.tensor([[0.0, 1.0]])

    assert overlay(grey(), map.to(dtype)).tobytes() == overlay(grey(), map).tobytes()


@pytest.mark.parametrize(("change", "error", "word"), [
    ({"map": torch.rand(1, 3, 3)}, ValueError, r"map\[0\]"),
    ({"map": [[1.0]]}, ValueError, "list"),
    ({"opacity": 1.5}, ValueError, "0 to 1"),
    ({"opacity": float("nan")}, ValueError, "0 to 1"),
    ({"colours": "jet"}, ValueError, "magma, viridis, signed"),
    ({"limits": (2, 1)}, ValueError, "low below high"),
    ({"limits": (0, float("inf"))}, ValueError, "finite"),
    ({"photo": Image.new("I;16", (4, 4))}, TypeError, "8 bits"),
    ({"photo": Image.new("F", (4, 4))}, TypeError, "8 bits"),
])
def test_wrong_use_is_refused_with_the_remedy(change, error, word):
    given = {"photo": grey(), "map": torch.rand(3, 3), **change}

    with pytest.raises(error, match=word):
        overlay(given.pop("photo"), given.pop("map"), **given)


@pytest.mark.parametrize("dark", [False, True])
def test_colour_bar_runs_through_the_table_and_carries_figures(dark):
    """The strip's ends are the table's ends; below it there is ink, more of it with a unit."""
    bar = colour_bar(0, 12.5, dark=dark)
    named = colour_bar(0, 12.5, dark=dark, unit="logits")

    assert bar.size == (320, 48)
    assert bar.getpixel((8, 10)) == (0, 0, 4) and bar.getpixel((311, 10)) == (252, 253, 191)
    paper = bar.getpixel((0, 0))

    def ink(picture: Image.Image) -> int:
        return sum(pixel != paper for pixel in values_of(picture.crop((0, 30, 320, 48))))

    assert ink(named) > ink(bar) > 20


def test_signed_colour_bar_is_white_in_its_middle():
    bar = colour_bar(-1, 2, size=(319, 40))

    assert bar.getpixel((159, 6)) == (255, 255, 255)
    assert bar.getpixel((8, 6)) == BLUE and bar.getpixel((310, 6)) == RED
    with pytest.raises(ValueError, match="160"):
        colour_bar(0, 1, size=(20, 20))


def test_sprite_scales_each_channel_by_its_own_range():
    """By hand: 0 … 3 and -6 … 6 on a 2x2 grid; no reduction, as the grid is smaller than the cell."""
    features = torch.tensor([[[0.0, 1.0], [2.0, 3.0]], [[-6.0, 6.0], [0.0, -6.0]]])

    planes, low, high = sprite(features)

    assert planes.dtype == torch.uint8 and planes.tolist() == [[[0, 85], [170, 255]], [[0, 255], [128, 0]]]
    assert low.tolist() == [0, -6] and high.tolist() == [3, 6]
    assert low.dtype == high.dtype == torch.float32


def test_sprite_averages_large_grids():
    """By hand: 32x32 of which the left half is 4: cells of 2x2 are means, here exactly the halves."""
    features = torch.zeros(1, 32, 32)
    features[0, :, :16] = 4
    features[0, ::2, :16] = 0

    planes, low, high = sprite(features)

    assert planes.shape == (1, 16, 16) and (low.item(), high.item()) == (0, 2)
    assert planes[0, :, :8].unique().tolist() == [255] and planes[0, :, 8:].unique().tolist() == [0]


@pytest.mark.parametrize(("shape", "cell", "expected"), [
    ((3, 7, 7), 16, (7, 7)), ((3, 40, 20), 16, (16, 8)), ((3, 20, 40), 16, (8, 16)), ((2, 112, 112), 8, (8, 8)),
    ((1, 300, 1), 16, (16, 1)),
])
def test_sprite_keeps_proportions(shape, cell, expected):
    planes, low, high = sprite(torch.rand(shape), cell)

    assert planes.shape == (shape[0], *expected) and low.shape == high.shape == (shape[0],)


def test_sprite_of_flat_and_broken_channels():
    """Flat: 0 with equal ends. Partly NaN: the rest keeps its range. Wholly NaN: says so."""
    features = torch.tensor([[[5.0, 5.0]], [[torch.nan, 2.0]], [[torch.nan, torch.inf]], [[0.0, 1e30]]])

    planes, low, high = sprite(features)

    assert planes.tolist() == [[[0, 0]], [[0, 0]], [[0, 0]], [[0, 255]]]
    assert low[:2].tolist() == high[:2].tolist() == [5, 2]
    assert low[2].isnan() and high[2].isnan()


def test_sprite_refuses_a_batch():
    with pytest.raises(ValueError, match=r"features\[0\]"):
        sprite(torch.rand(1, 3, 4, 4))
    with pytest.raises(ValueError, match="cell=0"):
        sprite(torch.rand(3, 4, 4), 0)


def test_importing_brings_neither_pillow_nor_numpy():
    """`explainers` needs torch alone: Pillow is imported when a picture is drawn, numpy never."""
    lines = (
        "import sys, torch; before = set(sys.modules); import explainers.overlays, explainers.maps;"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; assert not new & {'PIL', 'numpy'}, new"
    )

    subprocess.run([sys.executable, "-c", lines], check=True, timeout=60)


def test_a_few_extreme_pixels_do_not_leave_the_others_pale():
    """Oracle: of 64 x 64 values from 1 to 2, 20 stick out to 1000: the 99th percentile takes the full colour."""
    values = torch.linspace(1, 2, 64 * 64).view(64, 64)
    values.view(-1)[:20] = 1000.0
    expected = float(values.flatten().quantile(0.99))

    assert colour_limits(values)[1:] == (0.0, pytest.approx(expected)) and expected < 3
    assert colour_limits(-values)[1:] == (pytest.approx(-expected), pytest.approx(expected))


def test_coarse_and_sparse_maps_reach_to_their_largest_value():
    coarse = torch.ones(8, 8)
    coarse[0, 0] = 9.0
    sparse = torch.zeros(64, 64)
    sparse[3, 4] = 5.0

    assert colour_limits(coarse)[1:] == (0.0, 9.0)
    assert colour_limits(sparse)[1:] == (0.0, 5.0)
