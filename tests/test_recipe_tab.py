"""CONTRIBUTING's "Add a tab", done step by step in a copy: the tab is on the page and answers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SEEN = """
import sys
from types import SimpleNamespace
from ui.serving.gradio_setup import gradio as gr
from ui import page
from ui.engine import model_cache

config = page.build().get_config_file()
components = {each["id"]: each for each in config["components"]}
titles = [each["props"]["label"] for each in config["components"] if each["type"] == "tabitem"]
assert "Confidence" in titles, titles
(button,) = [each for each in config["components"] if each["props"].get("elem_id") == "hl-confidence"]
(event,) = [each for each in config["dependencies"] if (button["id"], "click") in map(tuple, each["targets"])]
assert [components[id]["props"]["elem_id"] for id in event["inputs"]][:2] == ["hl-picture", "hl-model"]
assert "torch" not in sys.modules, "a tab is built before torch is there"

model_cache.start()
with gr.Blocks():
    tab = page.TABS[-1](page.Page(gr.Blocks(), page.picture_panel.build(), gr.HTML(), gr.HTML()))
request, names = SimpleNamespace(session_hash="somebody"), ["efficientnet_lite0", "", "goldfish", "", {}]
(answer,) = tab.answer(request, sys.argv[1], *names)
(refusal,) = tab.answer(request, "/etc/passwd", *names)
print("answers:", answer, "|", refusal)
"""


def section() -> str:
    """The recipe's own text."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split("\n## Add a tab\n", 1)[1].split("\n## ", 1)[0]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after the recipe's steps; everything but `ui` is linked."""
    folder = tmp_path_factory.mktemp("project")
    for path in ROOT.iterdir():
        if path.name != "ui" and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "ui", folder / "ui", ignore=shutil.ignore_patterns("__pycache__"))
    (block,) = re.findall(r"```python\n(.*?)```", section(), re.DOTALL)
    (line,) = re.findall(r"`(CONFIDENCE = .*?)`", section())
    (folder / "ui/tabs/confidence_tab.py").write_text(textwrap.dedent("   " + block.lstrip()), encoding="utf-8")
    words = folder / "ui/words.py"
    words.write_text(words.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    page = folder / "ui/page.py"
    text = page.read_text(encoding="utf-8")
    changed = re.sub(r"^(TABS\b.* = \(.*)\)$", r"\1, Confidence)", text, flags=re.MULTILINE)
    assert changed != text, "TABS is one line of ui/page.py"
    imported = "from ui.tabs.components import canvas"
    page.write_text(changed.replace(imported, f"{imported}\nfrom ui.tabs.confidence_tab import Confidence"), "utf-8")
    return folder


def test_add_a_tab_has_at_most_five_steps() -> None:
    assert 1 <= len(re.findall(r"^\d\. ", section(), re.MULTILINE)) <= 5


@pytest.mark.slow
def test_add_a_tab_and_it_is_on_the_page_and_answers(copy: Path, tmp_path: Path) -> None:
    """With the settings on the page, and with a sentence for a file that nobody uploaded."""
    photo = shutil.copy(ROOT / "assets/examples/cat.jpg", tmp_path)
    environment = {"GRADIO_TEMP_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", SEEN, str(photo)], cwd=copy, env=environment, capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"answers: \d+\.\d% \| Only a picture that was uploaded here can be opened\.", done.stdout)


def test_add_a_tab_keeps_the_rooms(copy: Path) -> None:
    """The example is written as the project's own files are."""
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "ui/tabs/confidence_tab.py"],
        cwd=copy, capture_output=True, text=True,
    )  # fmt: skip
    if "No module named ruff" in found.stderr:
        pytest.skip("ruff is not installed")

    assert found.returncode == 0, found.stdout
