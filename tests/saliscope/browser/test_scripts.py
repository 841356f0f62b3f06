"""Functions of the page's scripts, in Chromium without a server."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from explainers.maps.overlays import bar_colors, color_map, overlay
from saliscope.percentages import percent

DRAW = """async ([photo, values, h, w, width, height, options]) => {
  const { view, draw } = await import("/drawing/paint.js"), { bytes } = await import("/wire.js");
  const pixels = new Uint8ClampedArray(bytes(photo));
  draw(pixels, width, height, view({ h, w, values: new Float32Array(bytes(values).buffer) }, options));
  return btoa(Array.from(pixels, (each) => String.fromCharCode(each)).join(""));
}"""
BAR = """async ([colors, fine]) => {
  const { bar } = await import("/drawing/paint.js");
  return Array.from(bar(new Uint8ClampedArray(4 * 256), { colors, fine })).filter((_, i) => i % 4 < 3);
}"""


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


MAPS = {
    "signed": (noise(7, 9), {}),
    "cells": (noise(7, 7), {"smooth": False}),
    "limits": (noise(7, 7).abs(), {"limits": [0.0, 5.0], "colors": "viridis"}),
    "fine": (noise(224, 224) ** 3, {}),
    "sizes": (noise(224, 224) ** 3, {"signed": False}),
    "smooth": (torch.nn.functional.interpolate(noise(1, 1, 7, 7), (224, 224), mode="bicubic")[0, 0], {}),
    "blank": (torch.zeros(7, 7), {}),
    "broken": (noise(9, 7).abs().where(torch.arange(63).view(9, 7) != 31, torch.nan), {}),
    "nothing": (torch.full((40, 40), torch.nan), {}),
}


def test_the_page_draws_what_the_library_draws(scripts: Any) -> None:
    """Oracle: `explainers.overlay` on the same pixels, within 2 of 255."""
    for name, (values, options) in MAPS.items():
        for size in ((150, 110), (400, 420)):
            plane = Image.effect_mandelbrot(size, (-2, -1.2, 0.8, 1.2), 60)
            photo = Image.merge("RGB", [plane, plane.rotate(90), plane.rotate(180)])
            packed = [text(photo.convert("RGBA").tobytes()), text(values.numpy().astype("<f4").tobytes())]

            found = scripts.evaluate(DRAW, [*packed, *values.shape, *size, options])

            drawn = np.frombuffer(base64.b64decode(found), np.uint8).reshape(size[1], size[0], 4)[..., :3].astype(int)
            expected = np.asarray(overlay(photo, values, **options)).astype(int)
            off = np.abs(drawn - expected).max(axis=2)
            assert (off > 2).mean() < 1e-4, (name, size, off.max(), (off > 2).mean())
            assert expected.std() > 5


def test_colors_and_color_bars_are_the_librarys(scripts: Any) -> None:
    """Oracle: the colormaps of explainers.maps.overlays, value by value."""
    for colors in ("magma", "viridis", "signed"):
        found = scripts.evaluate("async (name) => Array.from((await import('/drawing/colors.js')).table(name))", colors)
        assert found == color_map(colors).flatten().tolist(), colors
        for fine in (False, True):
            shown, expected = scripts.evaluate(BAR, [colors, fine]), bar_colors(256, colors, fine).flatten().numpy()
            assert np.abs(np.array(shown) - expected.astype(int)).max() <= 2, (colors, fine)


def test_numbers_have_one_form_in_python_and_scripts(scripts: Any) -> None:
    """The same text for a share, whether the server or the browser formats it; round ticks of a color bar."""
    shares = [0.0, 1e-9, 0.0004, 0.000999, 0.001, 0.0538, 0.0949, 0.0995, 0.1, 0.125, 0.94, 0.9996, 1.0, 1.23, -0.054]
    formatted = scripts.evaluate("async (all) => all.map((await import('/wire.js')).formatShare)", shares)
    assert formatted == [percent(share) for share in shares]
    assert formatted[:6] == ["0%", "<0.1%", "<0.1%", "<0.1%", "0.1%", "5.4%"]

    ranges = [[0, 1], [-3, 7], [0, 0.04], [1, 1]]
    ticks = scripts.evaluate(
        "async (all) => all.map(async ([low, high]) => (await import('/drawing/ticks.js')).roundTicks(low, high))"
        ".reduce(async (found, each) => [...await found, await each], [])",
        ranges,
    )
    assert [[tick["value"] for tick in each] for each in ticks] == [
        [0, 0.2, 0.4, 0.6, 0.8, 1], [-2, 0, 2, 4, 6], [0, 0.01, 0.02, 0.03, 0.04], []
    ]  # fmt: skip
    assert [tick["at"] for tick in ticks[1]] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])

    cases = [[1, 0.5], [100, 1], [101, 1], [1000, 0], [1000, -1], [1000, None, 1], [None], [], [1e38, 1e-7]]
    logarithmic = scripts.evaluate("async (all) => all.map((await import('/drawing/chart.js')).decades)", cases)
    assert logarithmic == [False, False, True, False, False, True, False, False, True]


SEARCH = """async (typed) => {
  const { search, highlight } = await import("/lists/search.js");
  const names = ["company", "giant panda", "panpipe", "frying pan", "café", "собака", "C#"];
  const items = [
    ...names.map((label) => ({ label, value: label })),
    { label: "ResNet-101 · 81.9% top-1", value: "=resnet101" }, { label: "ViT-B/16", value: "=vit_b_16" },
    { label: "Integrated gradients", value: "ig", words: "ig path", line: "Averages over a path." },
    { label: "Big pan", value: "big_pan", why: "too big" },
  ];
  const marks = ([text, typed]) => highlight(text, typed).filter(([, on]) => on).map(([piece]) => piece);
  return [typed.found.map((text) => search(items, text).map(({ label }) => label)), typed.marked.map(marks)];
}"""
FOUND = {
    "pan": ["giant panda", "panpipe", "frying pan", "company", "Big pan"],  # the last one cannot be selected
    "resnet101": ["ResNet-101 · 81.9% top-1"],
    "vit_b_16": ["ViT-B/16"],
    "vit b/16": ["ViT-B/16"],
    "CAFE": ["café"],
    "соб": ["собака"],
    "#": ["C#"],
    "ig": ["Integrated gradients", "Big pan"],
    "panda giant": ["giant panda"],
    "averages": ["Integrated gradients"],
    "zzz": [],
}
MARKED = {
    ("companion panda", "pan"): ["pan"],
    ("ViT-B/16", "vit_b_16"): ["ViT-B/16"],
    ("Grad-CAM++", "gradcam"): ["Grad-CAM"],
    ("café au lait", "lait cafe"): ["café", "lait"],
    ("<b>", "b"): ["b"],
    ("🐕 dog", "dog"): ["dog"],
}


def test_search_in_lists(scripts: Any) -> None:
    """Names, names of torchvision, keywords, accents and other scripts; matches at the start of a word come first."""
    found, marked = scripts.evaluate(SEARCH, {"found": [*FOUND], "marked": [list(each) for each in MARKED]})
    assert dict(zip(FOUND, found, strict=True)) == FOUND
    assert dict(zip(MARKED, marked, strict=True)) == MARKED


KEPT = """async () => {
  const { MapCache } = await import("/overlay/map_cache.js");
  const kept = new MapCache(), map = (length) => ({ b64: 'a'.repeat(length) });
  const partials = (key, count, size) => {
    for (let k = 1; k <= count; k++) kept.partial({ key, share: k / count, seconds: k, map: map(size) });
    return kept.entry(key).partials.map((each) => each.share);
  };
  const shares = partials('run', 400, 10), large = partials('large', 30, 4e6).length;
  for (let k = 0; k < 100; k++) kept.put({ key: `q${k}`, map: map(10), crop: { src: `picture ${k % 2}`, of: k } });
  const found = [kept.find('q99'), kept.find('q98'), kept.find('q0')].map((each) => each && each.crop.src);
  for (let k = 0; k < 9; k++) kept.put({ key: `h${k}`, map: map(20e6), crop: { src: 'large' } });
  return { shares, large, found, heavy: [...kept.entries.keys()].filter((key) => key[0] === 'h').length };
}"""


def test_the_map_cache_is_bounded(scripts: Any) -> None:
    found = scripts.evaluate(KEPT)
    gaps = np.diff(found["shares"])
    assert len(gaps) == 23 and found["shares"][-1] == 1 and gaps.max() < 5 * gaps.min(), "evenly spaced"
    assert found["found"] == ["picture 1", "picture 0", None]
    assert 2 <= found["large"] <= 4 and 3 <= found["heavy"] <= 5


def test_the_pixels_of_a_step_are_blurred(scripts: Any) -> None:
    found = scripts.evaluate(
        """async () => {
          const { blurredPixels } = await import("/trust/steps.js"), order = Uint8Array.from([1, 2, 2, 3, 20]);
          const cases = [["deletion", 2], ["insertion", 2], ["deletion", 20], ["insertion", 20]];
          return cases.map(([metric, step]) => [...blurredPixels(order, metric, step)]);
        }"""
    )
    assert found == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1] * 5, [0] * 5]


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Compute Spearman's correlation in float64: Pearson's correlation of ranks by counting, with ties averaged."""
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both].astype(np.float64), b[both].astype(np.float64)
    ranks = [np.array([((v < x).sum() + (v <= x).sum() + 1) / 2 for x in v]) for v in (a, b)]
    p, q = (each - each.mean() for each in ranks)
    size = np.sqrt((p @ p) * (q @ q)) if len(a) > 1 else 0
    return float(p @ q / size) if size else None


def test_correlations_match_a_slow_reference(scripts: Any) -> None:
    """Oracle: ranks by counting in float64."""
    generator = np.random.default_rng(3)
    normal, ties = generator.normal(size=(40, 2)), generator.integers(0, 4, size=(60, 2)).astype(float)
    holes = generator.normal(size=(30, 2))
    holes[[3, 9], [0, 1]] = np.nan, np.inf
    constant = np.stack([np.full(9, 2.5), np.arange(9.0)], 1)
    cases = [normal, ties, holes, constant, np.ones((5, 2)), np.zeros((1, 2)), normal[:, [0, 0]] * [1, -3]]
    found = scripts.evaluate(
        "async (cases) => { const { spearman } = await import('/compare/statistics.js');"
        "const read = (v) => v.map((x) => x === null ? NaN : x === 'inf' ? Infinity : x);"
        "return cases.map(([a, b]) => spearman({ a: Float64Array.from(read(a)), b: Float64Array.from(read(b)) })); }",
        [[[None if np.isnan(v) else "inf" if np.isinf(v) else v for v in side] for side in case.T] for case in cases],
    )
    for case, result in zip(cases, found, strict=True):
        wanted = spearman(case[:, 0], case[:, 1])
        assert result["rho"] == (wanted if wanted is None else pytest.approx(wanted, abs=1e-12)), result
    assert [each["constant"] for each in found] == [0, 0, 0, 1, 2, 0, 0] and found[2]["cells"] == 28


def test_maps_are_compared_on_a_common_grid(scripts: Any) -> None:
    """Oracle: differences computed by hand."""
    size, exact, grown, plain, scaled, apart, cut, ramp, half = scripts.evaluate(
        """async () => {
          const { align, difference } = await import("/compare/statistics.js");
          const map = (h, w, values, box) => ({ h, w, values: Float32Array.from(values), box });
          const small = map(1, 2, [0, 4]), large = map(2, 4, [1, 2, 3, 4, 5, 6, 7, -8]);
          const left = map(2, 2, [1, 2, 3, 4], [0, 0, .5, 1]), right = map(2, 2, [1, 2, 3, 4], [.5, 0, 1, 1]);
          const ramp = map(1, 4, [0, 1, 2, 3]), half = map(1, 2, [10, 20], [.25, 0, .75, 1]);
          const one = align(small, large), cut = align(ramp, half);
          return [[one.h, one.w], [...one.b], [...one.a], [...difference(one, false)], [...difference(one, true)],
            align(left, right), [cut.h, cut.w, ...cut.box], [...cut.a], [...cut.b]];
        }"""
    )
    assert size == [2, 4] and exact == [1, 2, 3, 4, 5, 6, 7, -8], "the finer map is not resampled"
    assert grown[:4] == grown[4:] and grown[0] == 0 and grown[3] == 4 and grown[0] < grown[1] < grown[2] < grown[3]
    assert plain == pytest.approx([a - b for a, b in zip(grown, exact, strict=True)], abs=1e-6)
    assert scaled == pytest.approx([a / 4 - b / 8 for a, b in zip(grown, exact, strict=True)], abs=1e-6)
    assert apart is None and cut == [1, 2, 0.25, 0, 0.75, 1] and ramp == [1, 2] and half == [10, 20]


def test_contours_are_closed_lines(scripts: Any) -> None:
    """Oracle: the contour of a cone is a circle."""
    circle = scripts.evaluate(
        """async () => {
          const { isolines } = await import("/share/contours.js");
          const side = 64, values = Float32Array.from({ length: side * side }, (_, i) =>
            1 - Math.hypot((i % side) + 0.5 - side / 2, Math.floor(i / side) + 0.5 - side / 2) / side);
          return isolines(values, side, side, 0.75);
        }"""
    )
    assert len(circle) == 1 and circle[0][0] == circle[0][-1], "one closed line"
    assert np.allclose(np.hypot(*(np.array(circle[0]) - 0.5).T), 0.25, atol=0.002)


FIGURE = """async ([kind, title]) => {
  const figure = await import("/share/figure.js"), { view } = await import("/drawing/paint.js");
  const bar = Object.assign(document.createElement("canvas"), { width: 4, height: 1 });
  bar.getContext("2d").fillRect(0, 0, 4, 1);
  const values = Float32Array.from({ length: 49 }, (_, i) => Math.exp(-(((i % 7) - 3) ** 2) - (i / 7 - 3) ** 2));
  const rendering = view({ h: 7, w: 7, values }), value = { words: { title } }, ends = [title, title, title];
  const panel = { image: null, rendering, value, ends, bar, opacity: 0.5 };
  const found = await figure[kind]([panel, { ...panel, name: title }, panel]);
  return Array.from(new Uint8Array(await found.arrayBuffer()), (each) => String.fromCharCode(each)).join("");
}"""
HOSTILE = "<img src=x onerror=window.__xss=1>${Object.assign(window,{__xss:1})}"


def test_an_svg_figure_shows_a_hostile_caption_as_text(scripts: Any) -> None:
    found = scripts.evaluate(FIGURE, ["svg", HOSTILE + '&amp;]]>\x00\x0b"\ud800 ' + "x" * 400])

    drawing = ElementTree.fromstring(found.encode("latin-1"))
    shown = "".join(node.text or "" for node in drawing.iter("{http://www.w3.org/2000/svg}text"))
    assert HOSTILE.replace(" ", "") in shown.replace(" ", "") and "&amp;]]>" in shown
    assert scripts.evaluate("window.__xss") is None


def test_a_pdf_figure_has_text_contours_and_a_table_of_its_objects(scripts: Any) -> None:
    data = scripts.evaluate(FIGURE, ["pdf", "Grad-CAM for tiger cat"]).encode("latin-1")

    start = int(re.findall(rb"startxref\n(\d+)\n", data)[-1])
    offsets = [int(entry) for entry in re.findall(rb"(\d{10}) 00000 n ", data[start:])]
    assert data.startswith(b"%PDF-1.4") and data[start : start + 4] == b"xref" and offsets
    for number, offset in enumerate(offsets, 1):
        assert data[offset:].startswith(b"%d 0 obj" % number)
    number = int(re.search(rb"/Contents (\d+) 0 R", data)[1])
    stream = data[offsets[number - 1] :]
    begin = stream.index(b"stream\n") + 7
    content = zlib.decompress(stream[begin : begin + int(re.search(rb"/Length (\d+)", stream)[1])])
    assert b"Grad-CAM for tiger cat".hex().encode() in content and content.count(b" l\n") > 50, "text and contours"
    assert re.search(rb"/MediaBox \[0 0 \d+", data) and data.count(b"/Subtype /Image") >= 3
