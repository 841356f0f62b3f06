"""The recipe "Add a view" of docs/recipes.md, run step by step in a copy: the view is on the page and answers."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.project.test_recipes import copy_project, insert
from tests.saliscope.browser.conftest import ARGUMENTS, chromium, expect, served

ROOT = Path(__file__).resolve().parents[3]

CHECK = """
import json, sys
from types import SimpleNamespace
from saliscope.page import build
build.build()
assert "torch" not in sys.modules, "the page is built before torch is imported"
from saliscope.compute import model_cache
from saliscope.page import features
model_cache.start("efficientnet_lite0")
event = {"part": "hl-confidence", "event": "submit", "form": {"image": "/etc/passwd"}}
(message,) = features.respond(SimpleNamespace(_data=event), "somebody")
assert "upload" in json.loads(message)["props"]["hl-confidence"]["value"], "only uploads and examples are opened"
"""


def follow_the_recipe(folder: Path) -> None:
    """Make a copy of the project with the view."""
    copy_project(folder, "saliscope")
    guide = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    section = guide.split("\n## Add a view\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```(?:python|js)\n(.*?)```", section, re.DOTALL)
    page = folder / "saliscope" / "page"
    package = page / "confidence"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, block in zip(("parts.py", "confidence.py", "confidence.js"), blocks, strict=True):
        (package / name).write_text(textwrap.dedent("   " + block.lstrip()), encoding="utf-8")
    (view,) = re.findall(r"`(View.*?,)` in", section)
    imported = "from saliscope.page.confidence import "
    for name, before, text in (
        ("layout.py", '    View("features", ', f"    {view}\n"),
        ("layout.py", "from saliscope.page.elements", f"{imported}parts as confidence\n"),
        ("features.py", "from saliscope.page.erase", f"{imported}confidence\n"),
    ):
        insert(page / name, before, text)


@pytest.mark.slow
def test_add_a_view_and_it_is_on_the_page_and_answers(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    follow_the_recipe(copy)
    environment = {"GRADIO_TEMP_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": ""}
    command = [sys.executable, "-c", CHECK]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]

    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    start = ("-m", "saliscope", "serve", "--model", "efficientnet_lite0")
    with served(tmp_path, *start, cwd=copy, PYTHONPATH="") as address, api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        page = browser.new_page()
        page.goto(address)
        page.locator("#hl-navigation [role=tab]", has_text="Confidence").click()
        page.locator("#hl-confidence button").click()
        expect(page.locator("#hl-confidence .hl-line")).to_have_text(re.compile(r"^\d+\.\d%$"))
        browser.close()
