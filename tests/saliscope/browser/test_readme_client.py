"""The README's example of calling a running server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_readme_example_is_answered(app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    (block,) = [block for block in blocks if "gradio_client" in block]
    assert "http://127.0.0.1:7860" in block
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}

    exec(compile(block.replace("http://127.0.0.1:7860", app), "README.md", "exec"), names)

    answer = names["answer"]
    assert isinstance(answer, dict)
    assert answer["method"] == "grad_cam" and answer["target"]["name"] == "espresso"
    assert Path(answer["map"]).read_bytes()[:6] == b"\x93NUMPY"
    assert Path(answer["overlay"]).read_bytes()[:4] == b"\x89PNG"
