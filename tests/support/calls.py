"""How contract tests call any method: cheap options, and the shape that its `returns` specifies."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from explainers import METHODS
from tests.support.nets import plain

SMALL = {"steps": 8, "samples": 4, "window": 4, "stride": 4}

# Methods that need a transformer have their contracts in test_attention.py and test_silent_failures.py.
# D-RISE is only offered for detectors, but also explains classifiers.
UNOFFERED = ("d_rise",)
NAMES = [name for name in METHODS if name in UNOFFERED or METHODS[name].applies(plain()) is None]
# Their default layer is the stage before the last, of twice the resolution in these networks.
INNER = ("internal_influence",)
OF_LAYERS = [name for name in NAMES if METHODS[name].takes_layer]
OF_INPUTS = [name for name in NAMES if not METHODS[name].takes_layer]
LONG = [name for name in NAMES if METHODS[name].long]
STOCHASTIC = [name for name in NAMES if METHODS[name].stochastic]
# Methods whose result depends on the target class.
CLASSY = [name for name in NAMES if METHODS[name].reads_class]
MAPS = [name for name in NAMES if METHODS[name].returns in ("grid", "pixels", "heat")]


def small(name: str) -> dict[str, Any]:
    """Options that make a call of the method cheap."""
    return {key: value for key, value in SMALL.items() if key in METHODS[name].options}


def call(name: str, net: nn.Module, images: Tensor, target: Any = None, **options: Any) -> Tensor:
    """The method with small options, of which `options` may replace any."""
    return METHODS[name](net, images, target, **(small(name) | options))


def shape(name: str, images: Tensor, layer_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the method's result for `images` at a layer of shape (N, K, h, w)."""
    n, c, height, width = images.shape
    _, k, h, w = layer_shape
    if name in INNER:
        h, w = 2 * h, 2 * w
    if "components" in METHODS[name].options:
        k = METHODS[name].options["components"].default
    return {
        "grid": (n, h, w),
        "pixels": (n, c, height, width),
        "heat": (n, height, width),
        "channels": (n, k),
        "features": (n, k, h, w),
    }[METHODS[name].returns]
