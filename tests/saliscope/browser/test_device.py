"""The device setting in Chromium, with a second device that stands for the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.saliscope.browser.conftest import ROOT, Visit, served

START = """
import sys
import torch
from saliscope.zoo import devices
devices.available = lambda: ["cpu", "lazy:0"]
devices.choose = lambda name: torch.device("cpu")
from saliscope.cli.commands import main
main(["serve", "--device", "cpu", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_a_visitor_chooses_the_device_of_a_network(tmp_path: Path, browser) -> None:
    start = tmp_path / "start.py"
    start.write_text(START)
    with served(tmp_path, str(start), PYTHONPATH=str(ROOT)) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        visit = Visit(context.new_page(), address)
        page, form = visit.open().page, visit.page.locator("#hl-preprocessing")
        assert form.inner_text().strip() == "Device: cpu" and " on cpu" in visit.status

        form.locator("summary").click()
        form.get_by_label("Device").select_option("lazy:0")
        visit.after(lambda: form.get_by_role("button", name="Apply").click())
        assert page.locator("#hl-model input").first.input_value().endswith("(device lazy:0)")
        assert "device%3Dlazy" in page.url or "device=lazy" in page.url

        visit.after(lambda: form.get_by_role("button", name="Undo changes").click())
        assert "device" not in page.locator("#hl-model input").first.input_value()
        visit.check()
        context.close()
