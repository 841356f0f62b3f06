"""Networks in bfloat16 and float16 on an accelerator, and autocast: finite maps close to those in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from explainers import METHODS, BadImages, grad_cam
from tests.support.calls import LONG, NAMES, small
from tests.support.nets import random_images, residual
from tests.support.pretended_device import WITHOUT_FLOAT64, pretended_devices

CPU = torch.device("cpu")
ONE_PASS = [name for name in NAMES if METHODS[name].family == "cam" and not METHODS[name].long]
ONE_PASS = [name for name in ONE_PASS if name not in ("cam", "full_grad")] + ["saliency", "input_x_gradient"]
CORRELATION = {torch.bfloat16: 0.98, torch.float16: 0.99}
"""The lowest correlation with the map in float32; differences of a pixel reach a third of the maximum in bfloat16."""


LOWEST = {"extremal_perturbation": 0.6, "xrai": 0.97}
"""The same for an optimization, whose few steps amplify rounding, and for regions, which are sorted by their sums."""


def explain(name: str, dtype: torch.dtype, device: torch.device, context: AbstractContextManager[Any]) -> Tensor:
    network, images = residual().to(device, dtype), random_images(2).to(dtype).to(device)
    options = small(name) | ({"components": 2} if "components" in METHODS[name].options else {})
    with context:
        return METHODS[name](network, images, [2, 0] if METHODS[name].reads_class else None, **options).cpu().float()


def assert_close(found: Tensor, expected: Tensor, correlation: float) -> None:
    assert bool(found.isfinite().all())
    assert float(torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1]) > correlation


@pytest.mark.sample
@pytest.mark.parametrize("name", [*ONE_PASS, *LONG])
def test_half_precision(name: str) -> None:
    """A network in half precision on an accelerator, and autocast on the CPU."""
    expected = explain(name, torch.float32, CPU, nullcontext())
    for dtype, correlation in CORRELATION.items():
        lowest = LOWEST.get(name, correlation)
        assert_close(explain(name, torch.float32, CPU, torch.autocast("cpu", dtype)), expected, lowest)
        with pretended_devices():
            assert_close(explain(name, dtype, WITHOUT_FLOAT64, nullcontext()), expected, lowest)


def test_images_of_another_precision_are_refused() -> None:
    with pretended_devices():
        network, images = residual().half().to(WITHOUT_FLOAT64), random_images(1).float().to(WITHOUT_FLOAT64)
        with pytest.raises(BadImages, match=r"images is torch.float32, but the model is torch.float16. Give images.to"):
            grad_cam(network, images, 1)
