"""Files of weights: the supported formats, and the errors for all other files, which are raised before loading."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.public.files import checkpoints as hostile
from saliscope.zoo import checkpoints
from saliscope.zoo.checkpoints import BadCheckpoint

ROOT = Path(__file__).parents[3]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4))


def states(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


WEIGHTS = states(network())


def prefixed(prefix: str, weights: dict[str, Tensor] = WEIGHTS) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in weights.items()}


def optimized() -> dict[str, Any]:
    net = network()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.rand(2, 3, 3, 3)).sum().backward()
    optimizer.step()
    ema = {name: value * 2 for name, value in WEIGHTS.items()}
    return {"model": WEIGHTS, "optimizer": optimizer.state_dict(), "epoch": 3, "ema": ema}


SUPPORTED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "plain": (lambda: WEIGHTS, []),
    "only ema": (lambda: {"ema": WEIGHTS}, ["['ema']"]),
    "model, ema, optimizer": (optimized, ["['model']", "ignored ['ema']"]),
    "nested": (lambda: {"model": {"state_dict": WEIGHTS}}, ["['model']['state_dict']"]),
    "Lightning": (lambda: {"state_dict": prefixed("model."), "hyper_parameters": {"lr": 1}}, ["'model.'"]),
    "compiled, then parallel": (lambda: prefixed("module._orig_mod."), ["'module._orig_mod.'"]),
    "any prefix": (lambda: prefixed("net.backbone."), ["'net.backbone.'"]),
    "averaged": (lambda: torch.optim.swa_utils.AveragedModel(network()).state_dict(), ["'module.'"]),
}


def test_common_wrappers_are_removed_and_reported(tmp_path: Path) -> None:
    for kind, (make, parts) in SUPPORTED.items():
        torch.save(make(), tmp_path / "w.pt")
        net = network(1)
        notes = checkpoints.load(net, tmp_path / "w.pt")
        assert equal(states(net), WEIGHTS), kind
        assert all(any(part in note for note in notes) for part in parts) and bool(notes) == bool(parts), (kind, notes)


def test_prefix_of_the_network_is_added_and_safetensors_are_read(tmp_path: Path) -> None:
    """The content determines the format, not the name of the file."""
    torch.save(WEIGHTS, tmp_path / "plain.pt")
    outer = nn.Module()
    outer.model = network(1)
    checkpoints.load(outer, tmp_path / "plain.pt")
    assert equal(states(outer.model), WEIGHTS)
    for name, prefix in (("w.safetensors", ""), ("w.pt", "module.")):
        (tmp_path / name).write_bytes(hostile.tensors(prefixed(prefix)))
        net = network(1)
        checkpoints.load(net, tmp_path / name)
        assert equal(states(net), WEIGHTS), name


def test_safetensors_equal_the_package(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch")
    names = "float64 float32 float16 bfloat16 int64 int8 uint8 bool".split()
    tensors = {name: (torch.randn(3, 5) * 9).to(getattr(torch, name)) for name in names}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 4)}
    package.save_file(tensors, tmp_path / "w.safetensors", metadata={"format": "pt"})

    (found,) = checkpoints.read(tmp_path / "w.safetensors")

    assert found.tensors.keys() == tensors.keys()
    for name, value in package.load_file(tmp_path / "w.safetensors").items():
        assert torch.equal(found.tensors[name], value) and found.tensors[name].dtype == value.dtype, name


def test_floats_are_converted_to_the_precision_of_the_network(tmp_path: Path) -> None:
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        weights = {name: value.to(kind) if value.is_floating_point() else value for name, value in WEIGHTS.items()}
        torch.save(weights, tmp_path / "w.pt")
        net = network(1)
        (note,) = checkpoints.load(net, tmp_path / "w.pt")
        assert note.startswith("8 tensors converted")
        assert equal(states(net), {name: value.to(WEIGHTS[name].dtype) for name, value in weights.items()}), kind


class Net(nn.Module):
    """The network of the message in docs/your_model.md."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(2, 8), nn.Linear(64, 4)


def test_every_mismatch_is_listed_and_nothing_is_loaded(tmp_path: Path) -> None:
    """The message is that of docs/your_model.md."""

    def message(net: nn.Module, weights: dict[str, Tensor]) -> str:
        torch.save(weights, tmp_path / "w.pt")
        before = states(net)
        with pytest.raises(BadCheckpoint) as caught:
            checkpoints.load(net, tmp_path / "w.pt")
        assert equal(states(net), before)
        return str(caught.value)

    wrong = states(Net()) | {"head.weight": torch.zeros(10, 64), "aux.weight": torch.zeros(1)}
    wrong["stem.bias"] = torch.full((8,), torch.nan)
    del wrong["head.bias"]
    assert message(Net(), wrong) in " ".join((ROOT / "docs" / "your_model.md").read_text(encoding="utf-8").split())
    wrong = {**WEIGHTS, "1.bias": torch.zeros(8, dtype=torch.int8)}
    wrong["1.weight"] = torch.full((8,), 1e300, dtype=torch.float64)  # overflows in the conversion
    found = message(network(1), wrong)
    assert "(1.bias: torch.int8 in the file, torch.float32 in the network)" in found and "tensor (1.weight (8" in found
    found = message(network(), nn.Sequential(nn.Linear(8, 4)).state_dict() | {"a.b": torch.zeros(1)})
    assert "6 missing keys " in found and found.endswith("probably belongs to a different network.")


def test_tied_weights_and_batch_norms_counter_may_be_missing(tmp_path: Path) -> None:
    """safetensors stores tied weights once; the counter has no effect in evaluation mode."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.norm = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)
            self.two = nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

    source, net = Tied(), Tied()
    kept = {name: value for name, value in source.state_dict().items() if not name.endswith(("tracked", "two.weight"))}
    torch.save(kept, tmp_path / "w.pt")

    checkpoints.load(net, tmp_path / "w.pt")

    assert torch.equal(net.two.weight, source.one.weight) and net.two.weight is net.one.weight


def test_infinities_in_a_buffer_are_allowed(tmp_path: Path) -> None:
    net = network()
    net.register_buffer("mask", torch.full((2, 2), -torch.inf))
    torch.save(net.state_dict(), tmp_path / "w.pt")

    assert checkpoints.load(net, tmp_path / "w.pt") == [] and checkpoints.not_finite(net) == []
    net[0].weight.data[0, 0, 0, 0] = torch.inf
    assert checkpoints.not_finite(net) == ["0.weight"]


def test_a_pickle_with_objects_is_not_opened(tmp_path: Path) -> None:
    for content in (network(), {"state_dict": WEIGHTS, "args": argparse.Namespace(a=1)}):
        torch.save(content, tmp_path / "w.pt")
        with pytest.raises(BadCheckpoint, match="could run arbitrary code. If you trust the file"):
            checkpoints.load(network(), tmp_path / "w.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", ["code", "structures", "headers"])
def test_no_hostile_file_is_loaded_or_runs_code(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make hostile` has more, which take a second."""
    monkeypatch.chdir(tmp_path)
    for name, content in getattr(hostile, group)():
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(BadCheckpoint) as caught:
                checkpoints.load(network(), tmp_path / name)
            assert str(caught.value).endswith(".") and not (tmp_path / hostile.MARKER).exists(), name
            (tmp_path / name).unlink()


WHOLE, NOISE = hostile.tensors(WEIGHTS), bytes(range(7, 250)) * 20
ENTRY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
DAMAGED = (
    ("w.pt", b"", "is empty"),
    ("w.pt", b"<html><body>404</body></html>", "is neither a safetensors nor a torch.save file"),
    ("noise", NOISE, "is not a safetensors file"),
    ("truncated", WHOLE[:-10], "is damaged: '3.weight' should have 128 bytes"),
    ("truncated header", WHOLE[:40], "is not a safetensors file or is truncated"),
    ("invalid JSON", hostile.with_header(b"{" * 40, length=9), "its header cannot be read"),
    (
        "wrong offsets",
        WHOLE.replace(b'"data_offsets":[0,', b'"data_offsets":[9,'),
        "'1.num_batches_tracked' should have 8",
    ),
    ("unknown dtype", WHOLE.replace(b"F32", b"F99"), "Unsupported dtype F99 of '0.bias'"),
    ("many tensors", dict.fromkeys(map(str, range(10_001)), ENTRY), "has 10,001 tensors"),
    ("long header", {"a": {**ENTRY, "k": "k" * 2_000_000}}, "has a header of 2.0 MB. The maximum is 2"),
)
"""Names, contents (or headers) of safetensors files and others, and messages."""


def test_damaged_file_is_reported(tmp_path: Path) -> None:
    for name, content, message in DAMAGED:
        path = tmp_path / (name if name == "w.pt" else f"{name}.safetensors")
        path.write_bytes(content if isinstance(content, bytes) else hostile.with_header(json.dumps(content).encode()))
        with pytest.raises(BadCheckpoint, match=re.escape(message)):
            checkpoints.load(network(), path)
    for older, lost in itertools.product((False, True), (100, 400, 1500)):
        torch.save(WEIGHTS, tmp_path / "w.pt", _use_new_zipfile_serialization=not older)
        (tmp_path / "w.pt").write_bytes((tmp_path / "w.pt").read_bytes()[:-lost])
        with pytest.raises(BadCheckpoint, match="is damaged or truncated. Download or save it again"):
            checkpoints.load(network(), tmp_path / "w.pt")


def test_file_without_weights_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"

    def refused(message: str, content: Any = None, where: Path = path) -> None:
        if content is not None:
            torch.save(content, path)
        with pytest.raises(BadCheckpoint, match=message):
            checkpoints.load(network(), where)

    for content in ([1, 2], {}, {"epoch": 3}, {0: torch.zeros(1)}):
        refused("contains no weights", content)
    refused("does not exist", where=tmp_path / "none.pt")
    refused("is a folder. Use a .safetensors", where=tmp_path)
    refused("0.weight: not a dense tensor", {name: value.to("meta") for name, value in WEIGHTS.items()})
    torch.jit.save(torch.jit.trace(network().eval(), torch.zeros(1, 3, 3, 3)), path)
    refused("is a TorchScript program")
