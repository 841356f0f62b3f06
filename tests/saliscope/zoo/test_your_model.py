"""docs/your_model.md: the examples run with the files that they use, and the options and the message exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from saliscope import zoo
from saliscope.cli import commands, serving
from saliscope.zoo import checkpoints
from tests.saliscope.zoo.test_checkpoints import safetensors
from tests.support.two_encoders import TwoEncoders, save_hugging_face, tokenize

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
CODE = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
"""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the variables of the examples, and write their files to the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    Path("my_net.py").write_text(CODE, encoding="utf-8")
    Path("labels.txt").write_text("fox\nowl\nelk\n", encoding="utf-8")
    found: dict[str, Any] = {}
    exec(CODE, found)
    network = found["build"]()
    Path("weights.safetensors").write_bytes(safetensors(network.state_dict()))
    torch.save(network, "whole.pt")
    with Image.open(ROOT / "assets" / "examples" / "dog.jpg") as photo:
        return {"photo": photo.convert("RGB"), "network": network}


@pytest.mark.slow
def test_example_with_own_network(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[0], "docs/your_model.md", "exec"), names)

    assert capsys.readouterr().out.strip() in ("fox", "owl", "elk") and names["model"].notes == ()


@pytest.mark.filterwarnings("ignore:.*mean and std")
def test_example_with_a_multi_label_network(names: dict[str, Any]) -> None:
    names |= {"load_model": zoo.load_model, "model": zoo.load_model("my_net.py:build", size=64)}

    exec(compile(BLOCKS[1], "docs/your_model.md", "exec"), names)

    assert names["explanation"].score == names["model"].score_kind == "sigmoid"
    assert names["evaluation"].unit("deletion") == "mean sigmoid probability"


@pytest.mark.slow
def test_example_with_hugging_face(names: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4}
    transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)).save_pretrained("my_vit")
    transformers.ConvNextImageProcessor(size={"shortest_edge": 96}).save_pretrained("my_vit")
    names["load_model"] = zoo.load_model

    exec(compile(BLOCKS[2], "docs/your_model.md", "exec"), names)

    assert names["logits"].shape == (1, 2) and Path("overlay.png").stat().st_size > 1000


def test_example_that_converts_a_pickled_network(names: dict[str, Any]) -> None:
    expected = names["network"].state_dict()

    exec(compile(BLOCKS[3], "docs/your_model.md", "exec"), names)

    target = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    assert checkpoints.load(target, "weights.pt") == []
    assert all(torch.equal(value, expected[name]) for name, value in target.state_dict().items())


def test_examples_with_a_text_encoder(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs with a small network in place of open_clip's, the call with a small CLIP."""
    pytest.importorskip("transformers")
    parts = {"create_model_and_transforms": lambda *_, **__: (TwoEncoders(), None, None)}
    monkeypatch.setitem(sys.modules, "open_clip", SimpleNamespace(**parts, get_tokenizer=lambda _: tokenize))
    Path("my_clip.py").write_text(BLOCKS[-4], encoding="utf-8")
    own = zoo.load_model("my_clip.py:build", size=32, mean=[0.5] * 3, std=[0.5] * 3)
    assert own.tokenize is tokenize and own.network(torch.zeros(1, 3, 32, 32)).shape == (1, 12)
    save_hugging_face("CLIP", Path("my_clip"))
    names["load_model"] = zoo.load_model

    exec(compile(BLOCKS[-3], "docs/your_model.md", "exec"), names)

    assert names["explanation"].map.shape == (1, 8, 8) and Path("overlay.png").stat().st_size > 1000


def test_examples_with_videos(names: dict[str, Any]) -> None:
    exec(compile(BLOCKS[-2], "docs/your_model.md", "exec"), names)

    assert names["explanation"].map.shape == (1, 8, 16, 24) and names["evaluation"].curves["deletion"].shape == (1, 21)
    with Image.open("map.gif") as drawn:
        assert drawn.n_frames == 8 and drawn.size == (48, 32)

    class TimeFirst(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, clips: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.network(clips.transpose(1, 2)))

    expected, names["network"] = names["explanation"].map, TimeFirst(names["network"]).eval()
    exec(compile(BLOCKS[-1], "docs/your_model.md", "exec"), names)
    assert names["explanation"].map.shape == expected.shape


def test_message_is_the_real_one(tmp_path: Path) -> None:
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
    assert served[0][1] == {
        "weights": "weights.safetensors",
        "labels": "labels.txt",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "size": 224,
    }
