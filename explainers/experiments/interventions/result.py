"""The result of an intervention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from explainers.display.classes import class_name
from explainers.display.display import Display, Displayed
from explainers.display.tables import paragraphs, table_html
from explainers.dtypes import to_cpu_float64
from explainers.hooks.edit import edit_outputs
from explainers.probabilities import probabilities_of


class ClassChange(NamedTuple):
    """A class with its probabilities (or scores, if the network has no probabilities) before and after."""

    class_index: int
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Intervention(Displayed):
    """The scores of a model before and after a change of one layer, both [N, K], or [N, 1] for other outputs.

    `channels` are the changed channels of `layer`, `cells` the number of changed positions (None: all), `value` what
    was done, and `score` how scores become probabilities ("softmax", "sigmoid", "identity", "log", "logit").
    `target_before` and `target_after` [N] are the scores of the `target` (class indices or its repr), None without one.
    """

    layer: str
    channels: tuple[int, ...]
    cells: int | None
    value: str
    before: Tensor
    after: Tensor
    score: str
    edit: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    """The function for `edit_outputs` that makes the same change."""
    target: list[int] | str | None = None
    target_before: Tensor | None = None
    target_after: Tensor | None = None

    @property
    def change(self) -> Tensor:
        """The change of all scores, [N, K]."""
        return self.after - self.before

    def top(self, count: int = 5) -> list[list[ClassChange]]:
        """Return for each image the classes that are among the best `count` before or after, best before first."""
        before, after = (self._converted(to_cpu_float64(scores)) for scores in (self.before, self.after))
        count = min(count, before.shape[1])
        found = []
        for old, new in zip(before, after, strict=True):
            classes = dict.fromkeys([*old.topk(count).indices.tolist(), *new.topk(count).indices.tolist()])
            found.append([ClassChange(index, float(old[index]), float(new[index])) for index in classes])
        return found

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Apply the same change to all forward passes of the model inside the block, for example those of a method.

        Only passes of the thread that entered the block are changed.

        Example
            >>> result = intervene(model, images, "layer4", channels=[3, 17])
            >>> with result.applied(model):
            ...     changed = grad_cam(model, images, 281)
        """
        with edit_outputs(model, {self.layer: self.edit}):
            yield

    def _converted(self, scores: Tensor) -> Tensor:
        found = probabilities_of(scores, self.score)
        return scores if found is None else found

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the most likely classes before and after."""
        rows = [
            [image, class_name(each.class_index, labels), each.before, each.after, each.change]
            for image, changes in enumerate(self.top())
            for each in changes
        ]
        table = table_html(["image", "class", "before", "after", "change"], rows)
        return Display(paragraphs([repr(self)]) + table, repr(self))

    def __repr__(self) -> str:
        n = len(self.before)
        changed = int((self.before.argmax(1) != self.after.argmax(1)).sum())
        what = f"{len(self.channels)} channel{'s' * (len(self.channels) != 1)}"
        where = "" if self.cells is None else f" at {self.cells} position{'s' * (self.cells != 1)}"
        of_target = ""
        if self.target_before is not None and self.target_after is not None:
            lost = float((self.target_after - self.target_before).mean())
            of_target = f"change of the target's score {lost:.3g}" + (" on average" if n > 1 else "")
        largest = float(torch.linalg.vector_norm(self.change, float("inf")))
        of_classes = (
            f"top class changed in {changed} of {n} image{'s' * (n != 1)}, largest change of a score {largest:.3g}, "
            if self.before.shape[1] > 1 or not of_target
            else ""
        )
        return f"Intervention({self.layer}, {what}{where}, {self.value}: {(of_classes + of_target).removesuffix(', ')})"
