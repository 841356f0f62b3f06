"""How tests call any method with cheap options, and the names of methods of each kind."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from explainers import METHODS, Explanation
from tests.support.nets import plain

SMALL = {"steps": 8, "samples": 4, "window": 4, "stride": 4}

# Methods that need a transformer are tested in test_attention.py; `check_explainer` has a network for them.
# D-RISE is only offered for detectors, but also explains classifiers.
UNOFFERED = ("d_rise",)
NAMES = [name for name in METHODS if name in UNOFFERED or METHODS[name].applies(plain()) is None]
OF_LAYERS = [name for name in NAMES if METHODS[name].takes_layer]
LONG = [name for name in NAMES if METHODS[name].long]
STOCHASTIC = [name for name in NAMES if METHODS[name].stochastic]
# Methods whose result depends on the target class.
CLASSY = [name for name in NAMES if METHODS[name].reads_class]
MAPS = [name for name in NAMES if METHODS[name].returns in ("grid", "pixels", "heat")]


def small(name: str) -> dict[str, Any]:
    """Options that make a call of the method cheap."""
    return {key: value for key, value in SMALL.items() if key in METHODS[name].options}


def codes(found: Explanation, row: int = 0) -> list[str]:
    """The codes of the findings about an image."""
    return [finding.code for finding in found.findings[row]]


def call(name: str, net: nn.Module, images: Tensor, target: Any = None, **options: Any) -> Tensor:
    """The method with small options, of which `options` may replace any."""
    return METHODS[name](net, images, target, **(small(name) | options))
