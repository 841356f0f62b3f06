"""docs/your_model.md: the examples with a text encoder run with small networks; the options and the message exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from saliscope import example, zoo
from saliscope.cli import commands, serving
from saliscope.zoo import checkpoints
from tests.support.two_encoders import TwoEncoders, save_hugging_face, tokenize

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_examples_with_a_text_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs with a small network in place of open_clip's, the call with a small CLIP."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    build, call = (next(block for block in BLOCKS if word in block) for word in ("open_clip", "text_embedding"))
    parts = {"create_model_and_transforms": lambda *_, **__: (TwoEncoders(), None, None)}
    monkeypatch.setitem(sys.modules, "open_clip", SimpleNamespace(**parts, get_tokenizer=lambda _: tokenize))
    Path("my_clip.py").write_text(build, encoding="utf-8")
    own = zoo.load_model("my_clip.py:build", size=32, mean=[0.5] * 3, std=[0.5] * 3)
    assert own.tokenize is tokenize and own.network(torch.zeros(1, 3, 32, 32)).shape == (1, 12)
    save_hugging_face("CLIP", Path("my_clip"))
    names: dict[str, Any] = {"load_model": zoo.load_model, "photo": example("dog")}

    exec(compile(call.replace("hf:openai/clip-vit-base-patch32", "hf:my_clip"), "docs/your_model.md", "exec"), names)

    assert names["explanation"].map.shape == (1, 8, 8) and Path("overlay.png").stat().st_size > 1000


def test_message_is_the_real_one(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(2, 8), nn.Linear(64, 4)

    state = Net().state_dict()
    state |= {"head.weight": torch.zeros(10, 64), "aux.weight": torch.zeros(1)}
    state["stem.bias"] = torch.full((8,), torch.nan)
    del state["head.bias"]
    torch.save(state, tmp_path / "w.pt")

    with pytest.raises(checkpoints.BadCheckpoint) as caught:
        checkpoints.load(Net(), tmp_path / "w.pt")

    assert str(caught.value) in " ".join(PAGE.split())


def test_every_command_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of each command are passed to the page, which is not started."""
    lines = re.findall(r"^saliscope (serve .*)$", PAGE.replace("\\\n", ""), re.M)
    served: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(serving, "check_address", lambda *address: None)
    monkeypatch.setattr(serving, "serve", lambda model, given, *rest: served.append((model, given)))

    for line in lines:
        commands.app(shlex.split(line), standalone_mode=False)

    models = [re.findall(r"--model (\S+)", line)[0] for line in lines]
    assert len(lines) >= 3 and [model for model, _ in served] == models
    assert served[0][1].keys() == {"weights", "labels", "mean", "std", "size"}
    assert served[0][1]["mean"] == [0.485, 0.456, 0.406] and served[0][1]["size"] == 224
