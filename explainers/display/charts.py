"""Line charts as SVG, which needs no script: curves of metrics, and statistics of gradients over training steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from explainers.display.encoding import escape

WIDTH, HEIGHT = 336, 200
LEFT, RIGHT, TOP, BOTTOM = 48, 8, 24, 44
COLORS = ("#2f6fed", "#d9822b", "#2e9e6b", "#b0419a", "#808088", "#c0392b", "#138d9e", "#8a6d1d")
"""Readable on light and dark backgrounds."""


def charts_html(charts: Iterable[str]) -> str:
    """Return charts next to each other."""
    return f'<div class="saliscope-charts">{"".join(charts)}</div>'


def mean_curve(curves: Tensor) -> list[tuple[float, float]]:
    """Return the mean of curves [N, points], without NaN, at positions from 0 to 1."""
    mean = curves.double().nanmean(0).tolist()
    return [(k / max(1, len(mean) - 1), value) for k, value in enumerate(mean)]


def line_chart(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    logarithmic: bool = False,
) -> str:
    """Return a chart of named lines of (x, y) points; values that are not finite interrupt a line.

    `logarithmic`: the vertical axis has powers of ten; values of 0 and below are left out.
    """
    usable = {name: [_usable(point, logarithmic) for point in points] for name, points in lines.items()}
    known = [point for points in usable.values() for point in points if point is not None]
    if not known:
        return ""
    box = _Box([point[0] for point in known], [point[1] for point in known])
    parts = [f'<text x="{LEFT}" y="14" font-weight="600">{escape(title)}</text>', _axes(box, x, y, logarithmic)]
    for k, (name, points) in enumerate(usable.items()):
        line = f'<path d="{_path(points, box)}" fill="none" stroke="{_color(k)}" stroke-width="1.8">'
        parts.append(f"{line}<title>{escape(name)}</title></path>")
    rows = math.ceil(len(lines) / 2)
    parts += [_legend(k, name) for k, name in enumerate(lines)]
    tall = HEIGHT - 8 + 16 * rows
    return (
        f'<svg viewBox="0 0 {WIDTH} {tall}" role="img" aria-label="{escape(title)}" font-size="11" '
        f'font-family="system-ui, sans-serif" fill="currentColor">{"".join(parts)}</svg>'
    )


class _Box:
    """The ranges of both axes, and positions in the chart."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        (self.left, self.right), (self.low, self.high) = _range(xs), _range(ys)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - self.left) / (self.right - self.left) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _usable(point: tuple[float, float], logarithmic: bool) -> tuple[float, float] | None:
    x, y = point
    if not (math.isfinite(x) and math.isfinite(y)) or (logarithmic and y <= 0):
        return None
    return (x, math.log10(y)) if logarithmic else (x, y)


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _path(points: Sequence[tuple[float, float] | None], box: _Box) -> str:
    steps, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        across, down = box.at(*point)
        steps.append(f"{pen}{across:.1f} {down:.1f}")
        pen = "L"
    # A single point becomes a short line, because a path of one point is not drawn.
    return " ".join(steps) + (" h1" if len(steps) == 1 else "")


def _axes(box: _Box, x: str, y: str, logarithmic: bool) -> str:
    def number(value: float) -> str:
        return f"{10**value if logarithmic else value:.2g}"

    bottom = HEIGHT - BOTTOM
    return (
        f'<path d="M{LEFT} {TOP} V{bottom} H{WIDTH - RIGHT}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<g opacity=".8"><text x="{LEFT - 4}" y="{TOP + 8}" text-anchor="end">{number(box.high)}</text>'
        f'<text x="{LEFT - 4}" y="{bottom}" text-anchor="end">{number(box.low)}</text>'
        f'<text x="{LEFT}" y="{bottom + 14}">{box.left:.3g}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{bottom + 14}" text-anchor="end">{box.right:.3g}</text>'
        f'<text x="{(LEFT + WIDTH) / 2}" y="{bottom + 14}" text-anchor="middle">{escape(x)}</text>'
        f'<text x="{WIDTH - RIGHT}" y="14" text-anchor="end">{escape(y)}</text></g>'
    )


def _legend(number: int, name: str) -> str:
    across, down = LEFT + number % 2 * 140, HEIGHT - 12 + number // 2 * 16
    short = name if len(name) <= 20 else f"…{name[-19:]}"
    return (
        f'<rect x="{across}" y="{down - 8}" width="10" height="10" fill="{_color(number)}"/>'
        f'<text x="{across + 15}" y="{down + 1}">{escape(short)}</text>'
    )
