"""Log of a training run's gradients: one row per step and tensor, limited in size, with CSV and TensorBoard export.

Statistics are computed on the gradient's device and transferred in batches, so that training steps do not synchronize.
"""

from __future__ import annotations

import copy
import csv
import io
import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explainers.display.charts import charts_html, charts_images, line_chart
from explainers.display.display import Display, Displayed, findings_html, paragraphs
from explainers.dtypes import float64_device
from explainers.training.diagnosis import Row, diagnose_training

# Values converted at a time on the CPU: their float64 copy fits into the cache of a core.
BLOCK = 2**17


def moments(gradient: Tensor, statistics: Sequence[str]) -> Tensor:
    """Return (norm, real and imaginary part of the sum, largest magnitude, count of nonzeros, norm around the mean).

    They are on the gradient's device, and zero if not needed. In float64, squares of large float32 values do not
    overflow.
    """
    wanted, flat = set(statistics), gradient.flatten()
    if not flat.numel():
        return torch.zeros(6, dtype=torch.float64)
    if flat.device.type == "cpu":
        return torch.tensor(_on_cpu(flat, wanted), dtype=torch.float64)
    if float64_device(flat.device) != flat.device:
        return _in_float32(flat)
    return _in_float64(flat, wanted)


def statistics_of(values: Sequence[float], size: int, statistics: Sequence[str]) -> dict[str, float]:
    """Return the named statistics of a gradient with `size` values from its moments."""
    norm, real, imaginary, largest, filled, centered = values
    total = math.hypot(real, imaginary) if imaginary else real
    named = {
        "norm": norm,
        "mean": total / max(size, 1),
        "std": 0.0 if size < 2 else centered / math.sqrt(size - 1) if centered < math.inf else math.nan,
        "max": largest,
        "zero_fraction": 1 - filled / size if size else 0.0,
    }
    return {name: named[name] for name in statistics}


def _real_parts(flat: Tensor) -> tuple[Tensor, ...]:
    """Return the real and the imaginary part of complex values, or the values themselves."""
    return torch.view_as_real(flat).unbind(-1) if flat.is_complex() else (flat,)


def _on_cpu(flat: Tensor, wanted: set[str]) -> list[float]:
    """Return the moments as numbers: on the CPU, reading one does not wait, and costs less than another operation."""
    parts = _real_parts(flat)
    sums, squares, spread = [0.0, 0.0], 0.0, 0.0
    if {"norm", "mean", "std"} & wanted:
        buffer = torch.empty(min(flat.numel(), BLOCK), dtype=torch.float64)  # once, since new memory is slow
        for k, part in enumerate(parts):
            sums[k], square = _sums(part, 0.0, buffer)
            squares += square
            around = square - sums[k] * sums[k] / len(part)
            if around < 1e-6 * square and "std" in wanted:  # the difference cancels
                rest, square = _sums(part, sums[k] / len(part), buffer)
                around = max(square - rest * rest / len(part), 0.0)
            spread += max(around, 0.0)  # without `std` it may be slightly below
    low, high = 0.0, 0.0
    if "max" in wanted:
        low, high = (end.item() for end in (flat.to(torch.complex128).abs() if flat.is_complex() else flat).aminmax())
    count = int(flat.count_nonzero()) if "zero_fraction" in wanted else 0
    largest = abs(low) if abs(low) > high else high
    # Comparisons with NaN are false.
    return [math.sqrt(squares), *sums, largest, count, math.sqrt(spread) if spread < math.inf else math.nan]


def _sums(part: Tensor, mean: float, buffer: Tensor) -> tuple[float, float]:
    """Return the sum and the sum of squares of the values minus `mean`, in blocks of the size of the buffer."""
    total = squares = 0.0
    for block in part.split(BLOCK):
        values = buffer[: block.numel()].copy_(block)
        if mean:
            values -= mean
        total += values.sum().item()
        squares += torch.dot(values, values).item()  # faster than vector_norm, and as exact
    return total, squares


def _in_float64(flat: Tensor, wanted: set[str]) -> Tensor:
    zero = torch.zeros((), dtype=torch.float64, device=flat.device)
    found = [zero] * 6
    parts = _real_parts(flat)
    size = torch.hypot(*parts) if len(parts) == 2 else flat
    if "norm" in wanted:
        found[0] = torch.linalg.vector_norm(size, dtype=torch.float64)
    if "mean" in wanted:
        found[1 : 1 + len(parts)] = [part.sum(dtype=torch.float64) for part in parts]
    if "std" in wanted:
        spreads = [part.to(torch.float64).var(correction=0) * len(part) for part in parts]
        found[5] = torch.stack(spreads).sum().sqrt()
    if "max" in wanted:
        low, high = size.aminmax()
        found[3] = torch.maximum(-low, high).to(torch.float64)
    if "zero_fraction" in wanted:
        found[4] = flat.count_nonzero().to(torch.float64)
    return torch.stack(found)


def _in_float32(flat: Tensor) -> Tensor:
    """Return all moments of values that are divided by the largest, whose squares neither overflow nor vanish."""
    parts = torch.stack([part.float() for part in _real_parts(flat)])
    largest = torch.hypot(*parts).amax() if len(parts) == 2 else parts.abs().amax()
    scale = largest.where(largest.isfinite() & (largest > 0), 1.0)
    parts = parts / scale
    sums, zero = parts.sum(1) * scale, torch.zeros_like(scale)
    norm, centered = (each.square().sum().sqrt() * scale for each in (parts, parts - parts.mean(1, keepdim=True)))
    return torch.stack([norm, sums[0], sums[1] if len(parts) == 2 else zero, largest, flat.count_nonzero(), centered])


STATISTICS = ("norm", "mean", "std", "max", "zero_fraction")
# Number of rows kept on the device before they are transferred together.
WAITING = 4096
LINES = 8
"""Lines in a chart, each in another color."""


# A row without its statistics, the number of the layer's call, and the moments: (1, 6), or (2, 6) if hooks changed the
# gradient, with the unedited gradient in the second row.
_Waiting = tuple[Row, int | None, Tensor]


@dataclass(repr=False)
class GradientLog(Displayed):
    """The gradients recorded by `record_gradients`: the latest `limit` rows, in order of arrival.

    `names` are the recorded tensors, first layer first; `dropped` counts discarded rows; `notes` are the values added
    with `note`, by step. The log can be read from another thread during training.
    """

    statistics: tuple[str, ...] = STATISTICS
    limit: int = 100_000
    names: tuple[str, ...] = ()
    dropped: int = 0
    current: int = 0
    notes: OrderedDict[int, dict[str, Any]] = field(default_factory=OrderedDict)
    _rows: deque[Row] = field(default_factory=deque, repr=False)
    _waiting: list[_Waiting] = field(default_factory=list, repr=False)
    _seen: set[tuple[str, int | None]] = field(default_factory=set, repr=False)
    _lock: Any = field(default_factory=threading.RLock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy, without the lock, which neither can copy."""
        with self._lock:
            self._transfer()
            own = {name: copy.copy(value) for name, value in vars(self).items() if name != "_lock"}
            return own | {"notes": copy.deepcopy(self.notes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    @property
    def rows(self) -> list[Row]:
        """All rows so far, including those of the current step."""
        with self._lock:
            self._transfer()
            return list(self._rows)

    def step(self) -> None:
        """End the step. Recording the same gradient a second time also ends it."""
        with self._lock:
            self.current += 1
            self._seen.clear()
            if len(self._waiting) >= WAITING:
                self._transfer()

    def note(self, step: int, *, loss: float | None = None, updates: Mapping[str, float] | None = None) -> None:
        """Add a step's `loss`, or `updates`: ‖Δw‖ / ‖w‖ by name."""
        with self._lock:
            entry = self.notes.setdefault(step, {"loss": None, "updates": {}})
            if loss is not None:
                entry["loss"] = float(loss)
            if updates is not None:
                entry["updates"] |= {name: float(value) for name, value in updates.items()}
            while len(self.notes) > self.limit:
                self.notes.popitem(last=False)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows as flat dicts: step, name, kind, size, each statistic, and if recorded histogram, edges, loss
        and update.
        """
        rows, entries = self.rows, []
        binned, noted = any(row.histogram is not None for row in rows), bool(self.notes)
        for row in rows:
            entry = {"step": row.step, "name": row.name, "kind": row.kind, "size": row.size, **row.statistics}
            if binned:
                entry |= {"histogram": row.histogram, "edges": row.edges}
            if noted:
                note = self.notes.get(row.step, {})
                entry |= {"loss": note.get("loss"), "update": note.get("updates", {}).get(row.name)}
            entries.append(entry)
        return entries

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the rows as CSV with a header, and write them to `path` if given; bins are separated by spaces."""
        text, rows = io.StringIO(), self.to_rows()
        columns = list(rows[0]) if rows else ["step", "name", "kind", "size", *self.statistics]
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: " ".join(map(str, v)) if isinstance(v, tuple) else v for k, v in row.items()})
        if path is not None:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return charts of the loss and of each statistic by step, for up to eight tensors, and the findings below."""
        rows = self.rows
        recorded = {row.name for row in rows}
        names = [name for name in self.names if name in recorded] or sorted(recorded)
        shown = names
        if len(names) > LINES:  # at even distances, the first and the last included
            shown = [names[round(k * (len(names) - 1) / (LINES - 1))] for k in range(LINES)]
        losses = [(float(step), note["loss"]) for step, note in self.notes.items() if note["loss"] is not None]
        charts = line_chart("loss", {"loss": losses}, x="step", y="") if losses else []
        for each in self.statistics:
            lines = {n: [(float(row.step), row.statistics[each]) for row in rows if row.name == n] for n in shown}
            title, is_size = f"{each} of the gradient", each in ("norm", "std", "max")
            charts += line_chart(title, lines, x="step", y="", logarithmic=is_size)
        most = f" The charts show {len(shown)} of them, from first to last." if len(shown) < len(names) else ""
        about = f"{len(rows):,} gradients of {len(names)} tensors.{most}"
        findings = findings_html(each.sentence for each in diagnose_training(self))
        content = paragraphs([about]) + charts_html(charts) + findings
        return Display(content, repr(self), charts_images(charts))

    def __repr__(self) -> str:
        rows = self.rows
        tensors = f"{len(rows):,} gradients of {len({row.name for row in rows})} tensors"
        steps = f", steps {rows[0].step} to {rows[-1].step}" if rows else ""
        losses = [note["loss"] for note in self.notes.values() if note["loss"] is not None]
        loss = f", loss {losses[0]:.4g} to {losses[-1]:.4g}" if losses else ""
        dropped = f", {self.dropped:,} older ones dropped" if self.dropped else ""
        return f"GradientLog({tensors}{steps}{loss}{dropped})"

    def to_tensorboard(self, logdir: str | Path) -> None:
        """Write every statistic as a scalar `name/statistic`, histograms and notes, for `tensorboard --logdir`.

        Errors   ImportError if tensorboard is not installed
        """
        try:
            from torch.utils.tensorboard import SummaryWriter  # an optional package
        except ImportError as error:
            raise ImportError(
                "to_tensorboard needs the package tensorboard, which is not installed. Run `pip install tensorboard`, "
                "or use to_csv, which writes the same statistics."
            ) from error
        writer: Any = SummaryWriter(str(logdir))
        try:
            for row in self.rows:
                for statistic, value in row.statistics.items():
                    writer.add_scalar(f"{row.name}/{statistic}", value, row.step)
                if row.histogram is not None and row.edges is not None:
                    writer.add_histogram_raw(f"{row.name}/gradient", **_bins(row), global_step=row.step)
            for step, note in self.notes.items():
                if note["loss"] is not None:
                    writer.add_scalar("loss", note["loss"], step)
                for name, value in note["updates"].items():
                    writer.add_scalar(f"{name}/update", value, step)
        finally:
            writer.close()

    def record(
        self,
        name: str,
        call: int | None,
        kind: str,
        gradient: Tensor,
        *,
        histograms: int,
        every: int,
        unedited: Tensor | None = None,
    ) -> None:
        """Record a gradient; a second gradient of the same tensor starts the next step.

        `unedited` is the gradient before any hook; None or the same object if no hook changed it.
        """
        with self._lock:
            if (name, call) in self._seen:
                self.step()
            self._seen.add((name, call))
            if self.current % every:
                return
            pair = [gradient] if unedited is None or unedited is gradient else [gradient, unedited]
            pair = [each.detach() if each.layout is torch.strided else each.detach().to_dense() for each in pair]
            bins = _histogram(pair[0], histograms) if histograms else (None, None)
            row = Row(self.current, name, kind, gradient.numel(), {}, *bins)
            self._waiting.append((row, call, torch.stack([moments(each, self.statistics) for each in pair])))

    def _transfer(self) -> None:
        """Convert the waiting entries to rows, with one transfer per device."""
        waiting, self._waiting = self._waiting, []
        times = Counter((row.step, row.name) for row, call, _ in waiting if call is not None)
        transferred = {}
        for device in {found.device for _, _, found in waiting}:
            own = [found for _, _, found in waiting if found.device == device]
            transferred[device] = iter(torch.cat(own).tolist())
        for row, call, found in waiting:
            name = row.name
            if call is not None and "#" not in name and times[row.step, name] > 1:  # a layer that ran several times
                name = f"{name}#{call}"
            values = [next(transferred[found.device]) for _ in range(len(found))]
            statistics, *before = (statistics_of(each, row.size, self.statistics) for each in values)
            self._rows.append(replace(row, name=name, statistics=statistics, unedited=before[0] if before else None))
        while len(self._rows) > self.limit:
            self._rows.popleft()
            self.dropped += 1


def _histogram(gradient: Tensor, bins: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the counts of the finite values in equal bins from minimum to maximum, and the bin edges."""
    gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    values = gradient if gradient.dtype == torch.float64 else gradient.float()
    values = values[values.isfinite()]
    low, high = (float(end) for end in values.aminmax()) if values.numel() else (0.0, 0.0)
    # The width of the range must not overflow.
    scale = 8.0 if max(-low, high) > torch.finfo(values.dtype).max / 4 else 1.0
    low, high = low / scale, high / scale
    if low == high:
        half = abs(low) / 2 or 0.5
        low, high = low - half, high + half
    values = values / scale if scale > 1 else values
    counts = tuple(int(count) for count in values.histc(bins, low, high).tolist()) if values.numel() else (0,) * bins
    return counts, tuple(scale * edge for edge in (*(low + (high - low) * k / bins for k in range(bins)), high))


def _bins(row: Row) -> dict[str, Any]:
    """Return a histogram in TensorBoard's format, with sums computed from the bin centers."""
    edges, counts = row.edges or (), row.histogram or ()
    centers = [(low + high) / 2 for low, high in pairwise(edges)]
    return {
        "min": edges[0],
        "max": edges[-1],
        "num": sum(counts),
        "sum": sum(center * count for center, count in zip(centers, counts, strict=True)),
        "sum_squares": sum(center * center * count for center, count in zip(centers, counts, strict=True)),
        "bucket_limits": list(edges[1:]),
        "bucket_counts": list(counts),
    }
