"""A custom model on the page: flags, another working directory, assumptions, and the device of a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.saliscope.browser.conftest import ROOT, expect, served

CODE = """
from torch import nn

def build():
    conv = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
    return nn.Sequential(*conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
"""
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


@pytest.mark.slow
def test_assumptions_and_devices_are_shown_and_can_be_changed(window: Any, tmp_path: Path) -> None:
    """The model is the default, and a visitor cannot name another one. Its size changes the layer's grid."""
    for name, text in (("own_page_net.py", CODE), ("start.py", TWO_DEVICES), ("l.txt", "fox\nowl\nelk\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    found: dict[str, Any] = {}
    exec(CODE, found)
    net: nn.Module = found["build"]()
    torch.save({"state_dict": {f"module.{name}": value for name, value in net.state_dict().items()}}, tmp_path / "w.pt")
    start = ("start.py", "--model", f"{tmp_path}/own_page_net.py:build", "--weights", "w.pt", "--labels", "l.txt")
    with served(tmp_path, *start, cwd=tmp_path, PYTHONPATH=str(ROOT)) as address:
        visit = window(address=address).open("?model=./other.py:build")
        page, form = visit.page, visit.page.locator("#hl-preprocessing")
        notice = expect(page.locator("#hl-findings"))
        notice.to_contain_text("Unknown model './other.py:build'")
        notice.to_contain_text("own_page_net.py:build is used instead.")
        assert f"{tmp_path}/own_page_net" not in page.content()
        for label in ("fox", "owl", "elk"):
            expect(page.locator("#hl-bars")).to_contain_text(label)
        for words in ("removed the prefix 'module.'", "using 224 x 224 pixels", "ImageNet's mean"):
            expect(form).to_contain_text(words)
        boxes = page.locator(".hl-rail-box").evaluate_all("boxes => boxes.map((box) => box.dataset.layer)")
        assert boxes == ["1", "3", "5", "6"]

        form.locator("summary").click()
        size, model = form.get_by_label("Size"), expect(page.locator("#hl-model input").first)
        size.fill("64 x 96")
        form.get_by_label("Device").select_option("lazy:0")
        visit.after(lambda: form.get_by_role("button", name="Apply").click())
        model.to_have_value(re.compile(r"^own_page_net.py:build \(.*size 64x96.*\)$"))
        model.to_have_value(re.compile("device lazy:0"))
        expect(page.locator(".hl-rail")).to_contain_text("16 × 24")
        expect(page.locator("#hl-layer input").first).to_have_value(re.compile("^3 · 16 × 24"))
        assert "device%3Dlazy" in page.url or "device=lazy" in page.url
        size.fill("0")
        size.press("Enter")
        line = expect(page.locator("#hl-status .hl-line"))
        line.to_contain_text("Invalid size '0'. Use pixels from 1 to 512")
        model.to_have_value(re.compile("size 64x96"))
        visit.after(lambda: form.get_by_role("button", name="Undo changes").click())
        expect(form).to_contain_text("using 224 x 224 pixels")
        model.not_to_have_value(re.compile("device"))
