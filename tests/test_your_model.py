"""docs/your_model.md: its examples run in a folder with the files that they name, and its flags and message exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import app
import models
from models import checkpoints
from tests.test_checkpoints import safetensors

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
CODE = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
"""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the examples use, and their files in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HOOKLENS_OFFLINE", "1")
    Path("my_net.py").write_text(CODE, encoding="utf-8")
    Path("labels.txt").write_text("fox\nowl\nelk\n", encoding="utf-8")
    found: dict[str, Any] = {}
    exec(CODE, found)
    network = found["build"]()
    Path("weights.safetensors").write_bytes(safetensors(network.state_dict()))
    torch.save(network, "whole.pt")
    with Image.open(ROOT / "assets" / "examples" / "dog.jpg") as photo:
        return {"photo": photo.convert("RGB"), "network": network}


def test_a_network_of_ones_own_runs(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[0], "docs/your_model.md", "exec"), names)

    assert capsys.readouterr().out.strip() in ("fox", "owl", "elk") and names["model"].notes == ()


def test_a_network_of_hugging_face_runs(names: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4}
    transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)).save_pretrained("my_vit")
    transformers.ConvNextImageProcessor(size={"shortest_edge": 96}).save_pretrained("my_vit")
    names["load_model"] = models.load_model

    exec(compile(BLOCKS[1], "docs/your_model.md", "exec"), names)

    assert names["logits"].shape == (1, 2) and Path("overlay.png").stat().st_size > 1000


def test_a_whole_network_is_converted(names: dict[str, Any]) -> None:
    expected = names["network"].state_dict()

    exec(compile(BLOCKS[2], "docs/your_model.md", "exec"), names)

    target = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    assert checkpoints.load(target, "weights.pt") == []
    assert all(torch.equal(value, expected[name]) for name, value in target.state_dict().items())


def test_the_message_is_the_real_one(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(2, 8), nn.Linear(64, 4)

    state = Net().state_dict()
    state |= {
        "head.weight": torch.zeros(10, 64),
        "stem.bias": torch.full((8,), torch.nan),
        "aux.weight": torch.zeros(1),
    }
    del state["head.bias"]
    torch.save(state, tmp_path / "w.pt")

    with pytest.raises(checkpoints.BadCheckpoint) as caught:
        checkpoints.load(Net(), tmp_path / "w.pt")

    assert str(caught.value) in " ".join(PAGE.split())


def test_every_command_is_understood(names: dict[str, Any]) -> None:
    commands = re.findall(r"^python app.py (.*)$", PAGE.replace("\\\n", ""), re.M)

    assert len(commands) >= 3
    for command in commands:
        settings = app.arguments(shlex.split(command))
        assert settings.model != "auto" and settings.size in (None, 224)
