"""A custom model on the page: flags, another working directory, assumptions, and the device of a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.saliscope.browser.conftest import ROOT, served

CODE = """
from torch import nn

def build():
    conv = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
    return nn.Sequential(*conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
"""
FLAGS = ("--labels", "l.txt", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25", "--size", "64x96")
TWO_DEVICES = """
import sys
import torch
from saliscope.zoo import devices
devices.available = lambda: ["cpu", "lazy:0"]
devices.choose = lambda name: torch.device("cpu")
from saliscope.cli.commands import main
main(["serve", "--device", "cpu", *sys.argv[1:]])
"""
"""A second device that stands for the CPU."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a network, its weights as saved by a training script, and its labels."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_page_net.py").write_text(CODE, encoding="utf-8")
    (folder / "start.py").write_text(TWO_DEVICES, encoding="utf-8")
    (folder / "l.txt").write_text("fox\nowl\nelk\n", encoding="utf-8")
    found: dict[str, Any] = {}
    exec(CODE, found)
    net: nn.Module = found["build"]()
    torch.save({"state_dict": {f"module.{name}": value for name, value in net.state_dict().items()}}, folder / "w.pt")
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    start = (str(folder / "start.py"), "--model", "own_page_net:build", "--weights", "w.pt", *FLAGS)
    with served(folder, *start, cwd=folder, PYTHONPATH=str(ROOT)) as found:
        yield found


@pytest.mark.slow
def test_it_is_the_default_with_its_labels_layers_and_a_choice_of_devices(window: Any, address: str) -> None:
    """A visitor cannot name another model."""
    visit = window(address=address).open("?model=./own_page_net.py:build")
    page, form = visit.page, visit.page.locator("#hl-preprocessing")
    notice = page.locator("#hl-findings").inner_text()
    assert "Unknown model './own_page_net.py:build'" in notice and "own_page_net:build is used instead." in notice
    assert "Grad-CAM" in visit.status and "own_page_net:build" in visit.status and " on cpu" in visit.status
    bars = page.locator("#hl-bars").inner_text()
    assert all(label in bars for label in ("fox", "owl", "elk"))
    assert "removed the prefix 'module.'" in form.inner_text()
    assert page.locator("#hl-layer input").first.input_value().startswith("3 · 16 × 24")

    form.locator("summary").click()
    form.get_by_label("Device").select_option("lazy:0")
    visit.after(lambda: form.get_by_role("button", name="Apply").click())
    assert page.locator("#hl-model input").first.input_value().endswith("(device lazy:0)")
    assert "device%3Dlazy" in page.url or "device=lazy" in page.url
    visit.after(lambda: form.get_by_role("button", name="Undo changes").click())
    assert "device" not in page.locator("#hl-model input").first.input_value()


@pytest.mark.slow
def test_assumptions_are_shown_and_can_be_changed(window: Any, folder: Path) -> None:
    """A network without preprocessing: its size changes the layer's grid, the address and the diagram."""
    with served(folder, str(ROOT / "app.py"), "--model", f"{folder}/own_page_net.py:build", cwd=folder) as address:
        visit = window(address=address).open()
        page, form = visit.page, visit.page.locator("#hl-preprocessing")
        text, size = form.inner_text(), form.get_by_label("Size")
        assert "'own_page_net.py:build' is unknown; using 224 x 224 pixels." in text and "ImageNet's mean" in text
        assert f"{folder}/own_page_net" not in page.content()
        boxes = page.locator(".hl-rail-box").evaluate_all("boxes => boxes.map((box) => box.dataset.layer)")
        assert boxes == ["1", "3", "5", "6"]

        form.locator("summary").click()
        size.fill("64 x 96")
        visit.after(lambda: form.get_by_role("button", name="Apply").click())
        assert page.locator("#hl-layer input").first.input_value().startswith("3 · 16 × 24")
        assert page.locator("#hl-model input").first.input_value() == "own_page_net.py:build (size 64x96)"
        assert "using" not in form.inner_text() and "16 × 24" in page.locator(".hl-rail").inner_text()
        size.fill("0")
        size.press("Enter")
        visit.state("error")
        assert "Invalid size '0'. Use pixels from 1 to 512" in visit.status
        visit.after(lambda: form.get_by_role("button", name="Undo changes").click())
        assert "using 224 x 224 pixels" in form.inner_text()
