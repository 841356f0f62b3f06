"""The recipe "Add a tab" of CONTRIBUTING.md, run step by step in a copy: the tab is on the page and answers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

CHECK = """
import sys
from types import SimpleNamespace
from saliscope.page.serving.gradio_setup import gradio as gr
from saliscope.page import build as page
from saliscope.compute import model_cache

config = page.build().get_config_file()
components = {each["id"]: each for each in config["components"]}
titles = [each["props"]["label"] for each in config["components"] if each["type"] == "tabitem"]
assert "Confidence" in titles, titles
(button,) = [each for each in config["components"] if each["props"].get("elem_id") == "hl-confidence"]
(event,) = [each for each in config["dependencies"] if (button["id"], "click") in map(tuple, each["targets"])]
assert [components[id]["props"]["elem_id"] for id in event["inputs"]][:2] == ["hl-image", "hl-model"]
assert "torch" not in sys.modules, "the page is built before torch is imported"

model_cache.start()
with gr.Blocks():
    tab = page.TABS[-1](page.Page(gr.Blocks(), page.settings_panel.build(), gr.HTML(), gr.HTML()))
request, names = SimpleNamespace(session_hash="somebody"), ["efficientnet_lite0", "", "goldfish", "", {}]
(answer,) = tab.answer(request, sys.argv[1], *names)
(message,) = tab.answer(request, "/etc/passwd", *names)
print("answers:", answer, "|", message)
"""


def follow_the_recipe(folder: Path) -> None:
    """Make a copy of the project with the tab; `saliscope` is copied, and everything else is linked."""
    for path in ROOT.iterdir():
        if path.name != "saliscope" and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "saliscope", folder / "saliscope", ignore=shutil.ignore_patterns("__pycache__"))
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = guide.split("\n## Add a tab\n", 1)[1].split("\n## ", 1)[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (line,) = re.findall(r"`(CONFIDENCE = .*?)`", section)
    package, page = folder / "saliscope/page/confidence", folder / "saliscope/page/build.py"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tab.py").write_text(textwrap.dedent("   " + block.lstrip()), encoding="utf-8")
    (package / "messages.py").write_text(f"{line}\n", encoding="utf-8")
    added = "from saliscope.page.confidence.tab import Confidence\n"
    text = page.read_text(encoding="utf-8").replace(
        "from saliscope.page.lab.tab", f"{added}from saliscope.page.lab.tab"
    )
    changed = re.sub(r"^(TABS\b.* = \(.*)\)$", r"\1, Confidence)", text, flags=re.MULTILINE)
    assert changed != text and added in text, "TABS is one line of saliscope/page/build.py"
    page.write_text(changed, encoding="utf-8")


@pytest.mark.slow
def test_add_a_tab_and_it_is_on_the_page_and_answers(tmp_path: Path) -> None:
    """It uses the settings on the page, and shows a message for a file that was not uploaded."""
    copy = tmp_path / "copy"
    copy.mkdir()
    follow_the_recipe(copy)
    image = shutil.copy(ROOT / "assets/examples/cat.jpg", tmp_path)
    environment = {"GRADIO_TEMP_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": ""}
    command = [sys.executable, "-c", CHECK, str(image)]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"answers: \d+\.\d% \| \w[\w ,]* upload(ed)?\b.*\.$", done.stdout.strip()), done.stdout
