"""Line charts as SVG, which needs no script, and as images: curves of metrics, statistics of gradients over steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from explainers.display.display import escape, has_pillow

if TYPE_CHECKING:
    from PIL import Image

WIDTH, HEIGHT = 336, 200
RIGHT, TOP, BOTTOM = 8, 24, 44
COLORS = ("#2f6fed", "#d9822b", "#2e9e6b", "#b0419a", "#808088", "#c0392b", "#138d9e", "#8a6d1d")
"""Readable on light and dark backgrounds."""
LETTER = 7
"""Width of a digit in pixels, in the widest of the usual fonts."""
LINE = 16
"""Height of a line of text in pixels."""
SCALE = 2
"""Pixels of an image for each pixel of the SVG."""


class Line(NamedTuple):
    """Connected points in pixels."""

    points: Sequence[tuple[float, float]]
    color: str = ""
    """"" is the color of text."""
    opacity: float = 1.0
    width: float = 1.0
    name: str = ""


class Text(NamedTuple):
    """A text whose baseline starts, ends or has its middle at a point in pixels."""

    text: str
    x: float
    y: float
    anchor: str = "start"
    bold: bool = False


Mark = Line | Text


@dataclass(frozen=True)
class Chart:
    """A chart with its height and everything that is drawn, in pixels of the SVG."""

    title: str
    height: float
    marks: tuple[Mark, ...]

    def svg(self) -> str:
        """Return the chart as SVG."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {self.height:g}" role="img" aria-label="{escape(self.title)}" font-size="11" '
            f'font-family="system-ui, sans-serif" fill="currentColor">{"".join(map(_svg, self.marks))}</svg>'
        )

    def image(self) -> Image.Image:
        """Draw the chart, black on white."""
        from PIL import Image, ImageDraw, ImageFont  # optional: the library requires only torch

        drawn = Image.new("RGB", (WIDTH * SCALE, round(self.height * SCALE)), "white")
        draw, font = ImageDraw.Draw(drawn), ImageFont.load_default(11 * SCALE)
        for mark in self.marks:
            if isinstance(mark, Line):
                points = [(x * SCALE, y * SCALE) for x, y in mark.points]
                gray = round(255 - 255 * mark.opacity)
                draw.line(points, fill=mark.color or (gray, gray, gray), width=round(mark.width * SCALE))
                continue
            # The default font has only the letters of Latin-1 that are in ASCII.
            text = mark.text.replace("×", "x").replace("…", "...")
            shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[mark.anchor] * draw.textlength(text, font=font)
            stroke = 0.4 if mark.bold else 0
            at = mark.x * SCALE - shift, (mark.y - 10) * SCALE
            draw.text(at, text, fill="black", font=font, stroke_width=stroke)
        return drawn


def charts_html(charts: Iterable[Chart]) -> str:
    """Return charts next to each other."""
    return f'<div class="saliscope-charts">{"".join(chart.svg() for chart in charts)}</div>'


def charts_images(charts: Iterable[Chart]) -> list[Image.Image]:
    """Return the charts as images, for hosts that show no HTML; none without Pillow."""
    return [chart.image() for chart in charts] if has_pillow() else []


def mean_curve(curves: Tensor) -> list[tuple[float, float]]:
    """Return the mean of curves [N, points], without NaN, at positions from 0 to 1."""
    mean = curves.double().nanmean(0).tolist()
    return [(k / max(1, len(mean) - 1), value) for k, value in enumerate(mean)]


def line_chart(
    title: str, lines: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str, logarithmic: bool = False
) -> list[Chart]:
    """Return a chart of named lines of (x, y) points, or none if no value is finite.

    Values that are not finite interrupt a line. `logarithmic`: the vertical axis is logarithmic, and says so. It leaves
    out values of 0 and below; if there are no others, the axis is linear.
    """
    finite = [point for points in lines.values() for point in points if all(map(math.isfinite, point))]
    if not finite:
        return []
    is_log = logarithmic and any(value > 0 for _, value in finite)
    known = [point for point in finite if not is_log or point[1] > 0]
    box = _Box([point[0] for point in known], [point[1] for point in known], is_log)
    label = ", ".join(filter(None, (y, "log scale" if is_log else "")))
    marks: list[Mark] = [Text(title, 2, 14, bold=True), Text(label, WIDTH - RIGHT, 14, "end"), *_axes(box, x)]
    down = HEIGHT - 10
    if len(known) < len(finite):
        lowest = min(value for _, value in finite)
        marks.append(Text(f"Values of 0{'' if lowest == 0 else ' and below'} are left out.", 6, down))
        down += LINE
    for k, (name, points) in enumerate(lines.items()):
        marks += [Line(part, COLORS[k % len(COLORS)], width=1.8, name=name) for part in _parts(points, box)]
    columns, most = (1, 44) if any(len(name) > 20 for name in lines) else (2, 20)
    for k, name in enumerate(lines):
        across, below = 6 + k % columns * 160, down + k // columns * LINE
        marks.append(Line([(across, below - 4), (across + 10, below - 4)], COLORS[k % len(COLORS)], width=10))
        marks.append(Text(name if len(name) <= most else f"…{name[1 - most :]}", across + 15, below))
    return [Chart(title, down + 2 + LINE * math.ceil(len(lines) / columns), tuple(marks))]


class _Box:
    """The ranges of both axes, their labels, and positions in the chart."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], is_log: bool) -> None:
        self.is_log = is_log
        self.x_labels = {value: number(value, (min(xs), max(xs))) for value in dict.fromkeys((min(xs), max(xs)))}
        self.xs, self.ys = _range(xs), _range([self.height(value) for value in ys])
        ends = min(ys), max(ys)
        inner = _round_values(self.height(ends[0]), self.height(ends[1]), is_log)
        apart = [value for value in inner if all(abs(self.down(value) - self.down(end)) >= LINE for end in ends)]
        self.y_labels = {value: number(value, ends) for value in (*ends, *apart)}
        self.left = 6 + LETTER * max(map(len, self.y_labels.values()))

    def height(self, value: float) -> float:
        return math.log10(value) if self.is_log else value

    def across(self, value: float) -> float:
        return self.left + _share(value, self.xs) * (WIDTH - self.left - RIGHT)

    def down(self, value: float) -> float:
        return HEIGHT - BOTTOM - _share(self.height(value), self.ys) * (HEIGHT - TOP - BOTTOM)

    def is_shown(self, x: float, y: float) -> bool:
        return math.isfinite(x) and math.isfinite(y) and (y > 0 or not self.is_log)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    half = abs(low) / 2 or 0.5
    return (low, high) if high > low else (low - half, high + half)


def _share(value: float, limits: tuple[float, float]) -> float:
    """Return the position of a value between limits, whose difference may exceed the largest float."""
    low, high = (limit / 4 for limit in limits)
    return (value / 4 - low) / (high - low)


def _round_values(low: float, high: float, is_log: bool) -> list[float]:
    """Return a few round values between two limits: 1, 2 or 5 times a power of ten, or powers of ten."""
    least = high / 4 - low / 4
    if not least > 0 or not math.isfinite(4 * least):
        return []
    power = 10.0 ** math.floor(math.log10(least))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= least), 10 * power)
    if is_log:
        step = max(1, math.ceil(least))
    values = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [10.0**value for value in values] if is_log else values


def number(value: float, limits: tuple[float, float]) -> str:
    """Format a value of an axis with as many digits as its limits need to differ."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    span, largest = limits[1] / 4 - limits[0] / 4, max(map(abs, limits)) / 4
    digits = 3 if not span > 0 else min(12, max(3, 2 + math.ceil(math.log10(largest / span))))
    return f"{value:.{digits}g}"


def _parts(points: Sequence[tuple[float, float]], box: _Box) -> list[list[tuple[float, float]]]:
    """Return the positions of connected points; a single point becomes a short line, so that it is visible."""
    parts: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if box.is_shown(x, y):
            parts[-1].append((box.across(x), box.down(y)))
        elif parts[-1]:
            parts.append([])
    single = [[(x - 2, y), (x + 2, y)] for ((x, y), *rest) in filter(None, parts) if not rest]
    return [part for part in parts if len(part) > 1] + single


def _axes(box: _Box, x: str) -> list[Mark]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    marks: list[Mark] = [Line([(box.left, TOP), (box.left, bottom), (right, bottom)], opacity=0.4)]
    for value, text in box.y_labels.items():
        down = box.down(value)
        marks += [Line([(box.left, down), (right, down)], opacity=0.12), Text(text, box.left - 4, down + 4, "end")]
    middle, below = (box.left + right) / 2, bottom + 14
    first, *rest = box.x_labels.values()
    if not rest:
        return [*marks, Text(f"{x} {first}", middle, below, "middle")]
    return [*marks, Text(first, box.left, below), Text(x, middle, below, "middle"), Text(rest[0], right, below, "end")]


def _svg(mark: Mark) -> str:
    if isinstance(mark, Text):
        weight = ' font-weight="600"' if mark.bold else ""
        anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
        return f'<text x="{mark.x:g}" y="{mark.y:.1f}"{anchor}{weight}>{escape(mark.text)}</text>' if mark.text else ""
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in mark.points)
    faint = "" if mark.opacity == 1 else f' opacity="{mark.opacity:g}"'
    title = f"<title>{escape(mark.name)}</title>" if mark.name else ""
    color = mark.color or "currentColor"
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{mark.width:g}"{faint}>{title}</path>'
