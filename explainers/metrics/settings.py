"""`EvaluationSettings`: the keyword arguments of `evaluate` as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from explainers.call.forward_wrapper import Forward
from explainers.call.loop import Progress
from explainers.options import Baseline
from explainers.targets import TargetLike


@dataclass(frozen=True, eq=False)
class EvaluationSettings:
    """The keyword arguments of `evaluate`, which describes and checks them, with the same defaults."""

    target: TargetLike = None
    metrics: str | Sequence[str] = ("deletion", "insertion")
    baseline: Baseline = "blur"
    controls: bool = True
    steps: int = 20
    score: str = "probability"
    magnitude: bool = False
    region: Tensor | None = None
    options: Mapping[str, Mapping[str, Any]] | None = None
    seed: int = 0
    batch_size: int | None = None
    precision: str = "auto"
    progress: Progress | None = None
    budget: float | None = None
    forward: Forward | None = None
