"""Overlays: colors computed by hand, and artefacts that must not be drawn."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import Tensor

from explainers import Explanation
from explainers.maps.color_maps import BLUE, RED, color_map
from explainers.maps.overlays import View, bar_colors, color_bar, overlay, roughness, view
from tests.support.color_difference import lab, linear

MAP = torch.rand(3, 3)

# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
BLINDNESS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def grey(value: int = 51, size: tuple[int, int] = (12, 8)) -> Image.Image:
    return Image.new("RGB", size, (value, value, value))


def values_of(overlay_image: Image.Image) -> list[tuple[int, ...]]:
    data, step = overlay_image.tobytes(), len(overlay_image.getbands())
    return [tuple(data[i : i + step]) for i in range(0, len(data), step)]


def mute(pixel: tuple[int, ...], color: float = 0.15, light: float = 0.8) -> tuple[float, ...]:
    """By hand: under a coarse map the image keeps 15% of its distance from gray, and 80% of its brightness."""
    luma = 0.2126 * pixel[0] + 0.7152 * pixel[1] + 0.0722 * pixel[2]
    return tuple(light * (luma + color * (value - luma)) for value in pixel)


def blended(under: tuple[float, ...], color: tuple[int, ...] | list[int], share: float) -> tuple[int, ...]:
    """By hand: a value that is `share` of the full color has the weight 0.9 share^0.65."""
    weight = 0.9 * share**0.65
    return tuple(round(below + (above - below) * weight) for below, above in zip(under, color, strict=True))


def speckle(side: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(side, side, generator=torch.Generator().manual_seed(seed))


def noise(mode: str = "RGB", size: tuple[int, int] = (13, 9)) -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    values = torch.randint(0, 256, (size[0] * size[1] * channels,), generator=torch.Generator().manual_seed(0))
    return Image.frombytes(mode, size, bytes(values.tolist()))


@pytest.mark.parametrize(
    ("name", "ends"), [("magma", [[0, 0, 4], [252, 253, 191]]), ("viridis", [[68, 1, 84], [253, 231, 37]])]
)
def test_tables_are_the_published_ones(name, ends):
    """Oracles: first and last colors as published, and the public table of 256 colors."""
    assert color_map(name)[[0, 255]].tolist() == ends
    matplotlib = pytest.importorskip("matplotlib")
    expected = (torch.tensor(matplotlib.colormaps[name].colors) * 255).round().to(torch.uint8)
    assert torch.equal(color_map(name), expected)


def test_signed_table_has_white_at_zero_and_mirrored_ends():
    """By hand: entry 128 is white; entries 128 - k and 128 + k are the two ends mixed with white by k / 127."""
    table = color_map("signed")

    assert table[128].tolist() == [255, 255, 255] and round(255 * 0.5) == 128
    assert table[0].tolist() == table[1].tolist() == list(BLUE) and table[255].tolist() == list(RED)
    for k in (1, 40, 127):
        mixed = [round(255 + (end - 255) * k / 127) for end in BLUE + RED]
        assert table[128 - k].tolist() + table[128 + k].tolist() == mixed


@pytest.mark.parametrize("kind", ["normal", *BLINDNESS])
def test_signed_colors_differ_under_color_blindness(kind):
    """Oracle: Machado et al. 2009. From a quarter of the range the signs differ by CIE76 > 10 (2.3 just noticeable)."""
    table = linear(color_map("signed"))
    if kind in BLINDNESS:
        table = (table @ torch.tensor(BLINDNESS[kind], dtype=torch.float64).T).clamp(0, 1)
    colors = lab(table, is_linear=True)
    k = torch.arange(32, 128)
    distance = torch.linalg.vector_norm(colors[128 - k] - colors[128 + k], dim=1)
    from_white = colors[128, 0] - colors[:, 0]

    assert distance.min() > 10, distance.min()
    assert distance.max() > 60
    assert abs(float(from_white[1] - from_white[255])) < 20, "neither sign may look much stronger"
    assert (from_white[128:].diff() > -0.05).all() and (from_white[1:129].diff() < 0.05).all()


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_p28_opacity_zero_is_the_image_bit_for_bit(mode):
    """pytorch-grad-cam makes the image white. By hand: at 0.3, a gray of 100 has gone 30% of the way to its 80."""
    image = noise(mode)
    for map in (torch.rand(3, 4), -torch.rand(3, 4), torch.full((2, 2), torch.nan)):
        assert overlay(image, map, opacity=0).tobytes() == image.tobytes()
    assert set(values_of(overlay(grey(100), torch.zeros(2, 2), opacity=0.3))) == {(94, 94, 94)}


@pytest.mark.parametrize("colors", [None, "signed"])
def test_p28_blank_map_draws_nothing_bright(colors):
    """By hand: 80% of (51, 51, 51) and nothing on it; pytorch-grad-cam gives (72, 72, 255)."""
    assert set(values_of(overlay(grey(), torch.zeros(2, 2), colors=colors))) == {(41, 41, 41)}
    image = noise()
    drawn = overlay(image, torch.zeros(2, 2), colors=colors)
    expected = [mute(pixel) for pixel in values_of(image)]
    assert (torch.tensor(values_of(drawn)) - torch.tensor(expected)).abs().max() <= 0.501


def test_p20_constant_positive_map_is_drawn_evenly_and_not_erased():
    """Other libraries subtract the minimum and show nothing. By hand: magma's last color at the weight 0.9."""
    drawn = overlay(grey(), torch.full((3, 3), 0.25))

    assert set(values_of(drawn)) == {blended((40.8,) * 3, [252, 253, 191], 1.0)} == {(231, 232, 176)}


def test_a_value_has_the_color_of_the_table_at_the_stated_weight():
    """By hand, on flat maps: entry 255 * share of the table at the weight 0.9 share^0.65, whatever else is on the map.

    Values beyond the limits have the last color. Signed limits keep zero in the middle: (-1, 4) reaches to -4.
    """
    for share in (0.0, 0.1, 0.25, 0.3, 0.6, 1.0):
        drawn = overlay(grey(100), torch.full((2, 2), 4 * share), limits=(0, 4))
        color = color_map("magma")[round(255 * share)].tolist()
        assert set(values_of(drawn)) == {blended((80.0,) * 3, color, share)}, share
    clipped = overlay(grey(100), torch.full((2, 2), 9.0), limits=(0, 4))
    assert set(values_of(clipped)) == set(values_of(drawn))
    for value, end in ((-1.0, BLUE), (1.0, RED), (-4.0, BLUE), (4.0, RED)):
        for limits in ((-4, 4), (-1, 4)):
            drawn = overlay(grey(100), torch.full((2, 2), value), colors="signed", limits=limits)
            assert set(values_of(drawn)) == {blended((80.0,) * 3, end, abs(value) / 4)}, (value, limits)


def test_coarse_maps_have_white_contours_at_50_and_80_percent():
    """By hand: a ramp from 0 to 1 over 99 steps crosses 0.5 at pixel 49.5 and 0.8 at 79.2; nowhere else is it white."""
    ramp = torch.linspace(0, 1, 100)[None].expand(3, 100)  # 300 cells: coarse

    drawn = torch.tensor(values_of(overlay(grey(100, size=(100, 3)), ramp))).view(3, 100, 3)[1]

    table = color_map("magma").tolist()
    painted = torch.tensor([blended((80.0,) * 3, table[round(255 * i / 99)], i / 99) for i in range(100)])
    changed = (drawn - painted).abs().amax(1) > 1
    assert changed.nonzero().flatten().tolist() == [48, 49, 50, 51, 78, 79, 80, 81], "less than two pixels away"
    assert drawn[79].min() > 200 and drawn[49:51].min() > 120, "white in the middle"
    assert (drawn[[48, 51, 78, 81]] < painted[[48, 51, 78, 81]]).all(), "dark next to it"


def test_fine_maps_have_no_contours():
    """By hand, on a map of the image's own size: each pixel has its color over 45% of the luma, and nothing else."""
    map = speckle().abs()
    top = view(map, smooth=False).high
    image = noise(size=(64, 64))

    drawn = overlay(image, map, smooth=False)

    table = color_map("magma").tolist()
    share = [min(value / top, 1.0) for value in map.flatten().tolist()]
    muted = [mute(pixel, 0, 0.45) for pixel in values_of(image)]
    expected = [blended(m, table[round(255 * each)], each) for m, each in zip(muted, share, strict=True)]
    assert ((torch.tensor(values_of(drawn)) - torch.tensor(expected)).abs().amax(1) > 3).float().mean() < 0.001


def test_signed_contours_are_drawn_on_either_side():
    map = torch.linspace(-1, 1, 101)[None].expand(3, 101)

    drawn = torch.tensor(values_of(overlay(grey(0, size=(101, 3)), map))).view(3, 101, 3)[1]

    white = (drawn.min(dim=1).values > 120).nonzero().flatten().tolist()
    around = (drawn[[74, 76, 89, 91]].max(dim=1).values < 120).all()
    assert [at for at in white if at > 50] == [75, 90] and around, "50% and 80% above zero: white, with a dark halo"
    assert drawn[[10, 25]].max() < 30 and drawn[[9, 11, 24, 26]].min() > 120, "below zero: dark, with a white halo"


def test_which_maps_are_fine():
    """By hand: a chessboard of -1 and 1 has variance 1 and steps of 2, so 4 / 2; a ramp of n cells 6 / (n^2 - 1)."""
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2 * 2.0 - 1
    assert (roughness(board), roughness(torch.arange(50.0)[None])) == pytest.approx((2, 6 / (50**2 - 1)))
    smooth = torch.nn.functional.interpolate(speckle(7)[None, None], (224, 224), mode="bicubic")[0, 0]
    blocks = speckle(14).repeat_interleave(16, 0).repeat_interleave(16, 1)
    assert view(speckle(64)).fine and view(speckle(32)).fine
    for map in (speckle(31), smooth, blocks, torch.ones(64, 64), torch.full((64, 64), torch.nan)):
        assert not view(map).fine


@pytest.mark.parametrize(("signed", "sigma"), [(False, 1), (True, 3)])
def test_fine_maps_are_blurred_for_display_only(signed, sigma):
    """Oracle: a Gaussian of 1 / 224 of the side, of 3 / 224 for both signs, as a slow sum. The map is unchanged."""
    map = speckle(224) if signed else speckle(224).abs()
    before, reach = map.clone(), 3 * sigma

    shown = view(map).values

    kernel = torch.exp(-(torch.arange(-float(reach), reach + 1) ** 2) / (2 * sigma**2))
    kernel = kernel[:, None] * kernel / kernel.sum() ** 2
    for row, column in ((100, 100), (9, 214)):
        around = map[row - reach : row + reach + 1, column - reach : column + reach + 1]
        assert float(shown[row, column]) == pytest.approx(float((around * kernel).sum()), abs=1e-6)
    assert torch.equal(map, before)
    assert torch.equal(view(map, smooth=False).values, map) and torch.equal(view(map[:30, :30]).values, map[:30, :30])


def test_p24_non_finite_values_are_striped_and_do_not_set_the_range():
    """Never a clean-looking map, as in torchcam. Stripes of black and white; the finite part keeps its own range."""
    map = torch.ones(1, 40)
    map[0, :20] = torch.inf
    map[0, 5] = torch.nan

    drawn = values_of(overlay(grey(size=(40, 1)), map, opacity=1))
    nothing = values_of(overlay(grey(), torch.full((2, 2), torch.nan), opacity=1))

    assert set(drawn[:19]) == set(nothing) == {(0, 0, 0), (255, 255, 255)}
    assert set(drawn[21:]) == {(231, 232, 176)}


@pytest.mark.parametrize(
    ("map", "expected"),
    [
        (torch.tensor([[1.0, 3.0]]), ("magma", 0.0, 3.0)),
        (torch.tensor([[-1.0, 3.0]]), ("signed", -3.0, 3.0)),
        (torch.tensor([[-4.0, -1.0]]), ("signed", -4.0, 4.0)),
        (torch.zeros(2, 2), ("magma", 0.0, 1.0)),
        (torch.tensor([[torch.nan, 2.0], [torch.inf, 0.0]]), ("magma", 0.0, 2.0)),
        (torch.full((1, 1), 1e-30), ("magma", 0.0, pytest.approx(1e-30))),
    ],
)
def test_color_limits_include_zero(map, expected):
    assert color_limits(map) == expected
    assert color_limits(torch.tensor([[-1.0, 3.0]]), "viridis") == ("viridis", -1.0, 3.0), "except those by name"


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "YCbCr", "LA", "PA", "RGBA"])
def test_every_8_bit_mode_and_float_dtype_is_accepted(mode):
    image = noise("RGB").convert("L").convert(mode) if mode in ("P", "1", "LA", "PA") else noise(mode)
    before, map = image.tobytes(), torch.tensor([[0.0, 1.0]])

    drawn = overlay(image, map, opacity=0.4)

    assert drawn.size == image.size and drawn.mode == ("RGBA" if mode in ("LA", "PA", "RGBA") else "RGB")
    assert image.tobytes() == before and drawn.convert("RGB").tobytes() != image.convert("RGB").tobytes()
    if mode == "RGBA":
        assert drawn.getchannel("A").tobytes() == image.getchannel("A").tobytes()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert overlay(image, map.to(dtype), opacity=0.4).tobytes() == drawn.tobytes()


def color_limits(values: torch.Tensor, colors: str | None = None) -> tuple[str, float, float]:
    chosen = view(values, colors=colors)
    return chosen.colors, chosen.low, chosen.high


def bar_of(low: float, high: float, unit: str = "", fine: bool = False, largest: float = 0.0) -> Image.Image:
    colors = "signed" if low < 0 else "magma"
    return color_bar(View(torch.zeros(1, 1), colors, low, high, fine, True, largest, 0.0), unit, 320)


def test_color_bar_spans_the_table_and_shows_its_limits():
    """The strip's ends are the table's ends; the limits are below it, with the unit if one is given."""
    bar = bar_of(0, 12.5)

    assert bar.size == (320, 40)
    assert bar.getpixel((8, 10)) == (102, 102, 102), "zero is the muted gray: 80% of 128"
    assert bar.getpixel((311, 10)) == blended((102.4,) * 3, [252, 253, 191], 1.0)
    assert bar_of(0, 1, fine=True).getpixel((8, 10)) == (58, 58, 58), "45% of 128"
    below = bar.crop((0, 22, 320, 40)).convert("L")
    marked = sorted({x for x in range(320) if len(set(below.crop((x, 0, x + 1, 18)).tobytes())) > 1})
    assert marked[0] <= 12 and 308 <= marked[-1] < 312, "the labels end where the strip ends"
    for low in (8, 130, 252):
        assert any(low <= x < low + 60 for x in marked), "three labels"
    assert not any(60 <= x < 130 or 190 <= x < 252 for x in marked)
    assert bar_of(0, 12.5, "logits").tobytes() != bar.tobytes()
    assert bar_of(0, 12.5, "logit per unit of input " * 3).size == (320, 52), "a separate line"


def test_clipped_values_are_marked_at_the_ends_that_have_them():
    """The last value is 'or more', and in signed color bars the first is 'or less'."""
    for low, is_marked in ((0, False), (-2, True)):
        bar, clipped = (bar_of(low, 2, largest=each) for each in (2.0, 3.0))
        for box, differs in (((0, 22, 60, 40), is_marked), ((252, 22, 320, 40), True)):
            assert (bar.crop(box).tobytes() != clipped.crop(box).tobytes()) == differs, (low, box)


@pytest.mark.parametrize(("colors", "low"), [("magma", 0.0), ("viridis", 0.0), ("signed", -1.0)])
def test_color_bar_has_the_colors_of_the_overlay(colors, low):
    """Identity: a constant map on the bar's gray background has the bar's color for its value."""
    bar = bar_colors(21, colors, False)[0].tolist()

    for step, value in enumerate(torch.linspace(low, 1, 21).tolist()):
        drawn = overlay(grey(128), torch.full((2, 2), value), colors=colors, limits=(low, 1))
        assert set(values_of(drawn)) <= {tuple(bar[step]), (255, 255, 255)}, value


def test_outliers_of_fine_maps_are_clipped():
    """Oracle: of 64 x 64 values from 1 to 2, 10 are 1000: the 99.5th percentile has the full color."""
    values = 1 + torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    values.view(-1)[::410] = 1000.0
    expected = float(values.flatten().quantile(0.995))

    raw = view(values, smooth=False)

    assert (raw.low, raw.high) == (0.0, pytest.approx(expected)) and expected < 3 and raw.clipped
    assert view(-values, smooth=False).low == pytest.approx(-expected)
    assert color_limits(values)[2] < 5, "and after the blur as well"


def test_limits_of_coarse_and_sparse_maps_reach_the_maximum():
    coarse, sparse = torch.ones(8, 8), torch.zeros(64, 64)
    coarse[0, 0], sparse[3, 4] = 9.0, 5.0

    assert color_limits(coarse)[1:] == (0.0, 9.0)
    assert not view(coarse).clipped and view(coarse, limits=(0, 0.1)).clipped
    assert (view(sparse, smooth=False).low, view(sparse, smooth=False).high) == (0.0, 5.0)
    assert color_limits(sparse)[2] == float(view(sparse).values.max()) > 4.9, "the largest after the blur"


@pytest.mark.parametrize(("method", "options", "signed"), [
    ("saliency", {}, False), ("saliency", {"signed": True}, True), ("lrp", {}, True),
    ("saliency", {"colors": "signed"}, True), ("saliency", {"colors": "viridis"}, False),
    ("grad_cam", {}, True), ("grad_cam", {"signed": False}, False), ("one_of_mine", {}, True),
])  # fmt: skip
def test_an_explanation_draws_magnitudes_of_gradients(method, options, signed):
    """Identity: the `overlay` of its map, or of the absolute values; the map itself stays signed."""
    map, image = speckle()[None], noise(size=(64, 64))
    found = Explanation(method, None, [0], {}, map, map, None, [{}], [[]], 0.0)

    drawn = found.overlay(image, **options)[0]

    colors = options.get("colors")
    expected = overlay(image, map[0] if signed else map[0].abs(), colors=colors)
    assert drawn.tobytes() == expected.tobytes() and found.map.min() < 0
    assert view(map[0]).colors == "signed" and view(map[0], signed=False).colors == "magma"
