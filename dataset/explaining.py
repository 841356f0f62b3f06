"""Rows of a decoded batch: one forward pass tells prediction and scores, the same pass gives the map."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import explainers
from dataset.errors import Refused
from dataset.items import Item
from dataset.pictures import Decoded
from dataset.settings import LABEL, PREDICTED, WRONG, Classes, Settings

if TYPE_CHECKING:
    from models import Model

TOP = 5
ROWS = 16
"""Rows of a pass of a long method: a number that follows the clock would change the last bits of its maps."""
LOWEST, HIGHEST = -6, 14
"""Powers of two between which the largest value of a map is stored as it is: float16 ends at 65,504, and has eleven
digits above 6e-5 alone.
"""


@dataclass
class Explainer:
    """A network and the settings of a run; call it with decoded batches."""

    model: Model
    settings: Settings
    device: str = "cpu"
    classes: Classes = field(init=False)

    def __post_init__(self) -> None:
        self.classes = Classes(self.model.labels)
        try:
            torch.empty(0, device=self.device)
        except Exception:  # each backend has errors of its own
            raise Refused(f"--device {self.device} is not here. Give cpu, or cuda where there is such a GPU.") from None
        self.network = self.model.network.to(self.device)
        self.options = self.settings.method_options()
        long = explainers.METHODS[self.settings.method].long
        self.steady: dict[str, Any] = {"batch_size": max(1, ROWS // self.settings.batch_size)} if long else {}
        self.fixed = self._fixed()

    def _fixed(self) -> int | None:
        """The class that all maps explain; None where each picture has its own.

        Errors   Refused for a class that the network has not
        """
        name = self.settings.target
        if name in (PREDICTED, LABEL):
            return None
        found = self.classes.find(name)
        if found is None:
            near = self.classes.near(name)
            raise Refused(
                f"--target {name!r} is no class of {self.model.name}. {near}Give predicted, label, or a class."
            )
        return found

    def check(self) -> None:
        """Explain noise: a layer or a network that the method cannot take is refused before the first picture.

        Errors   Refused, and those of the library
        """
        if why := explainers.METHODS[self.settings.method].applies(self.network, self.settings.layer):
            raise Refused(why)
        shape = 1, self.model.channels, *self.model.size
        noise = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(self.device)
        short: dict[str, Any] = {"budget": 1e-3} if self.steady else {}
        explainers.explain(
            self.settings.method, self.network, noise, self.fixed, compare=False, **self.steady, **self.options, **short
        )

    def __call__(self, batch: Decoded) -> list[dict[str, Any]]:
        """The rows of a batch, in its order; with `where="wrong"` those of wrong predictions alone, and of errors.

        Errors   those of the library
        """
        began = time.perf_counter()
        readable = [i for i, error in enumerate(batch.errors) if error is None]
        items = [batch.items[i] for i in readable]
        images = batch.images.to(self.device)
        rows: dict[int, dict[str, Any]] = {}
        if self.settings.where == WRONG and items:
            keep = self._wrong(images, items)
            readable, items, images = [readable[k] for k in keep], [items[k] for k in keep], images[keep]
        if items:
            made = self._rows(images, items)
            each = (time.perf_counter() - began) / len(items)
            for place, row in zip(readable, made, strict=True):
                rows[place] = row | {"seconds": each, "sha256": batch.hashes[place]}
        for place, error in enumerate(batch.errors):
            if error is not None:
                item = batch.items[place]
                known = {"path": item.path, "label": item.label, "sha256": batch.hashes[place], "error": error}
                rows[place] = known
        return [rows[place] for place in sorted(rows)]

    def _wrong(self, images: Tensor, items: Sequence[Item]) -> list[int]:
        with torch.inference_mode():
            predicted = self._scores(images).argmax(1).tolist()
        labels = [self.classes.find(item.label) for item in items]
        return [k for k, (one, label) in enumerate(zip(predicted, labels, strict=True)) if label not in (None, one)]

    def _scores(self, images: Tensor) -> Tensor:
        output = self.network(images)
        return getattr(output, "logits", output).float()

    def _rows(self, images: Tensor, items: Sequence[Item]) -> list[dict[str, Any]]:
        labels = [self.classes.find(item.label) for item in items]
        if self.settings.target != LABEL or not any(label is not None for label in labels):
            return self._explained(images, items, labels, self.fixed)
        known = [k for k, label in enumerate(labels) if label is not None]
        rows = dict(zip(known, self._part(images, items, labels, known, named=True), strict=True))
        rest = [k for k in range(len(items)) if k not in rows]
        if rest:
            rows |= zip(rest, self._part(images, items, labels, rest, named=False), strict=True)
        return [rows[k] for k in range(len(items))]

    def _part(
        self, images: Tensor, items: Sequence[Item], labels: Sequence[int | None], which: list[int], named: bool
    ) -> list[dict[str, Any]]:
        own = [labels[k] for k in which]
        target = [label for label in own if label is not None] if named else None
        return self._explained(images[which], [items[k] for k in which], own, target)

    def _explained(
        self, images: Tensor, items: Sequence[Item], labels: Sequence[int | None], target: int | list[int] | None
    ) -> list[dict[str, Any]]:
        found = explainers.explain(
            self.settings.method, self.network, images, target, compare=False, **self.steady, **self.options
        )
        scores = found.scores
        if scores is None or scores.ndim != 2:
            with torch.inference_mode():
                scores = self._scores(images)
        scores = scores.float().cpu()
        probabilities = scores.softmax(1)
        best = probabilities.topk(min(TOP, scores.shape[1]), dim=1)
        maps, scales = _halves(found.map.float().cpu())
        targets = found.target if isinstance(found.target, list) else None
        rows = []
        for k, item in enumerate(items):
            top = [
                {"class": self.classes.name(index), "index": index, "probability": value}
                for index, value in zip(best.indices[k].tolist(), best.values[k].tolist(), strict=True)
            ]
            first, label = top[0]["index"], labels[k]
            explained = targets[k] if targets else first
            rows.append(
                {
                    "path": item.path,
                    "label": item.label,
                    "label_index": label,
                    "label_probability": None if label is None else float(probabilities[k, label]),
                    "prediction": top[0]["class"],
                    "prediction_index": first,
                    "probability": top[0]["probability"],
                    "correct": None if label is None else label == first,
                    "top5": top,
                    "target": self.classes.name(explained),
                    "target_index": explained,
                    "score": float(scores[k, explained]),
                    "statistics": _numbers(found.statistics[k]),
                    "findings": [each.code for each in found.findings[k]],
                    "finding_texts": [each.sentence for each in found.findings[k]],
                    "map": maps[k].contiguous().numpy().astype("<f2").tobytes(),
                    "map_scale": float(scales[k]),
                    "map_height": maps.shape[1],
                    "map_width": maps.shape[2],
                }
            )
        return rows


def _halves(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Maps [N, h, w] as float16, and what each is to be multiplied by: 1, or a power of two where float16 ends."""
    largest = maps.abs().nan_to_num(0, 0, 0).amax((1, 2))
    power = torch.where(largest > 0, largest, 1.0).log2().floor()
    scales = torch.where((power < LOWEST) | (power > HIGHEST), 2.0**power, 1.0)
    return (maps / scales[:, None, None]).to(torch.float16), scales


def _numbers(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    numbers = ((name, value) for name, value in statistics.items() if isinstance(value, (int, float)))
    return [{"name": name, "value": float(value)} for name, value in numbers]
