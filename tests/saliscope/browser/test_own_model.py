"""A custom model on the page: the flags of app.py, from another working directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.saliscope.browser.conftest import ROOT, Visit, served

CODE = """
from torch import nn

def build():
    conv = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
    return nn.Sequential(*conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
"""
FLAGS = ("--labels", "l.txt", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25", "--size", "64x96")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a network, its weights as saved by a training script, and its labels."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_page_net.py").write_text(CODE, encoding="utf-8")
    (folder / "l.txt").write_text("fox\nowl\nelk\n", encoding="utf-8")
    found: dict[str, object] = {}
    exec(CODE, found)
    torch.manual_seed(0)
    net: nn.Module = found["build"]()  # type: ignore[operator]
    torch.save({"state_dict": {f"module.{name}": value for name, value in net.state_dict().items()}}, folder / "w.pt")
    (folder / "half.pt").write_bytes((folder / "w.pt").read_bytes()[:700])
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    start = (str(ROOT / "app.py"), "--model", "own_page_net:build", "--weights", "w.pt", *FLAGS)
    with served(folder, *start, cwd=folder) as found:
        yield found


@pytest.fixture
def visit(browser, address: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = Visit(context.new_page(), address)
    yield found
    found.check()
    context.close()


@pytest.mark.slow
def test_it_is_the_default_with_its_labels_and_layers(visit: Visit) -> None:
    page = visit.open().page

    assert "Grad-CAM" in visit.status and "own_page_net:build" in visit.status
    assert page.locator("#hl-model input").first.input_value().startswith("own_page_net:build")
    assert {label for label in ("fox", "owl", "elk") if label in page.locator("#hl-bars").inner_text()} == {
        "fox",
        "owl",
        "elk",
    }
    assert "removed the prefix 'module.'" in page.locator("#hl-preprocessing").inner_text()
    assert page.locator("#hl-layer input").first.input_value().startswith("3 · 16 × 24")
    visit.after(lambda: visit.choose("method", "Saliency"))
    assert "Saliency" in visit.status


@pytest.mark.slow
def test_assumptions_are_shown_and_can_be_changed(folder: Path, browser) -> None:
    """A network without preprocessing: its size changes the layer's grid, the address and the diagram."""
    with served(folder, str(ROOT / "app.py"), "--model", f"{folder}/own_page_net.py:build", cwd=folder) as found:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        visit = Visit(context.new_page(), found)
        page, form = visit.open().page, visit.page.locator("#hl-preprocessing")
        text = form.inner_text()
        assert "'own_page_net.py:build' is unknown; using 224 x 224 pixels." in text and "ImageNet's mean" in text
        assert f"{folder}/own_page_net" not in page.content() and "--size" not in text
        boxes = page.locator(".hl-rail-box").evaluate_all("boxes => boxes.map((box) => box.dataset.layer)")
        assert boxes == ["1", "3", "5", "6"]

        form.locator("summary").click()
        form.get_by_label("Size").fill("64 x 96")
        visit.after(lambda: form.get_by_role("button", name="Apply").click())
        assert page.locator("#hl-layer input").first.input_value().startswith("3 · 16 × 24")
        assert page.locator("#hl-model input").first.input_value() == "own_page_net.py:build (size 64x96)"
        assert "using" not in form.inner_text() and "16 × 24" in page.locator(".hl-rail").inner_text()

        form.get_by_label("Size").fill("0")
        form.get_by_label("Size").press("Enter")
        page.wait_for_function("document.documentElement.dataset.hlState === 'error'")
        assert "Invalid size '0'. Use pixels from 1 to 512" in visit.status
        visit.after(lambda: form.get_by_role("button", name="Undo changes").click())
        assert "using 224 x 224 pixels" in form.inner_text()
        visit.check()
        context.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_page_net:build2", "./own_page_net.py:build", "hf:/tmp", "timm:resnet18"])
def test_a_user_cannot_name_another_model(visit: Visit, name: str) -> None:
    page = visit.open(f"?model={name}").page

    notice = page.locator("#hl-findings").inner_text()
    assert f"Unknown model '{name}'" in notice and "own_page_net:build is used instead." in notice
    assert "Grad-CAM" in visit.status and "own_page_net:build" in visit.status


@pytest.mark.slow
def test_damaged_weights_are_reported_and_nothing_is_served(folder: Path) -> None:
    start = (str(ROOT / "app.py"), "--model", "own_page_net:build", "--weights", "half.pt", *FLAGS)
    done = subprocess.run([sys.executable, *start], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "half.pt is damaged or truncated" in done.stdout + done.stderr
