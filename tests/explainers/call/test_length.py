"""What a call of an ordinary network enters: few files and functions, not the guard; and passes of its first call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import explainers
from tests.support.nets import random_images, residual, settle

FOLDER = str(Path(explainers.__file__).parent)
LENGTHS = {"grad_cam": (12, 50), "saliency": (12, 40), "integrated_gradients": (15, 75), "explain": (20, 90)}
"""The most files and functions of the library that a call enters, except for comprehensions."""


def call_of(name: str) -> Callable[[], Any]:
    net, images = residual().float(), random_images(1).float()
    if name == "explain":
        return lambda: explainers.explain("grad_cam", net, images, 1)
    return lambda: getattr(explainers, name)(net, images, 1)


@pytest.mark.parametrize("name", LENGTHS)
def test_files_and_functions_of_a_call(name: str) -> None:
    call, files, functions = call_of(name), set[str](), set[tuple[str, str]]()

    def enter(frame: Any, event: str, argument: Any) -> None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and file.startswith(FOLDER):
            files.add(file)
            if function not in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"):
                functions.add((file, frame.f_code.co_qualname if sys.version_info >= (3, 11) else function))

    call()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert len(files) <= LENGTHS[name][0], sorted(files)
    assert len(functions) <= LENGTHS[name][1], sorted(functions)


METHODS = {"grad_cam": {}, "saliency": {}, "lrp": {}, "occlusion": {"window": 8, "stride": 8}, "score_cam": {}}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_the_first_call_runs_two_passes_more(name: str, count: int) -> None:
    net, images, passes = residual().float(), random_images(count).float(), 0

    class Counted(type(net)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            nonlocal passes
            passes += 1
            return super().forward(x)

    net.__class__ = Counted
    found = []
    for _ in range(2):
        passes = 0
        explainers.METHODS[name](net, images, 1, **METHODS[name])
        found.append(passes)
    assert found[0] <= found[1] + 2


def test_an_ordinary_network_never_loads_the_guard() -> None:
    code = """
import sys, torch, explainers
from tests.support.nets import random_images, residual
net, images = residual().float(), random_images().float()
explainers.explain("grad_cam", net, images, 1)
explainers.occlusion(net, images, 1, window=8, stride=8)
assert not [name for name in sys.modules if name.startswith("explainers.unusual")]
explainers.saliency(net.train(), images, 1)
assert "explainers.unusual.private_view" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_hooks_of_the_user_act_in_later_calls() -> None:
    """Nothing that earlier calls have found out is used while there are hooks on the network."""
    net, images = settle(residual().float()), random_images().float()
    plain = explainers.grad_cam(net, images, 1)
    with explainers.edit_outputs(net, {"layer1": lambda output: output * 0.1}):
        edited = explainers.grad_cam(net, images, 1)
    assert not torch.allclose(plain, edited)
    torch.testing.assert_close(explainers.grad_cam(net, images, 1), plain)
