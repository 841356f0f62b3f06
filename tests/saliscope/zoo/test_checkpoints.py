"""Files of weights: the supported formats, and the errors for all other files, which are raised before loading."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saliscope.zoo import checkpoints
from saliscope.zoo.checkpoints import BadCheckpoint


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


def safetensors(weights: dict[str, Tensor], **metadata: str) -> bytes:
    """Write the safetensors format by hand, independently of the package and of the reader under test."""
    names = {torch.float32: "F32", torch.int64: "I64", torch.float16: "F16"}
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, value in weights.items():
        data = bytes(value.contiguous().flatten().view(torch.uint8).tolist())
        header[name] = {
            "dtype": names[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def averaged() -> dict[str, Tensor]:
    return torch.optim.swa_utils.AveragedModel(network()).state_dict()


def optimized() -> dict[str, Any]:
    net = network()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.rand(2, 3, 3, 3)).sum().backward()
    optimizer.step()
    return {
        "model": WEIGHTS,
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "ema": {k: v * 2 for k, v in WEIGHTS.items()},
    }


SUPPORTED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "plain": (lambda: WEIGHTS, []),
    "state_dict": (lambda: {"state_dict": WEIGHTS, "epoch": 3}, ["['state_dict']"]),
    "only ema": (lambda: {"ema": WEIGHTS}, ["['ema']"]),
    "model, ema, optimizer": (optimized, ["['model']", "ignored ['ema']"]),
    "nested": (lambda: {"model": {"state_dict": WEIGHTS}}, ["['model']['state_dict']"]),
    "DataParallel": (lambda: prefixed("module."), ["'module.'"]),
    "Lightning": (
        lambda: {"state_dict": prefixed("model."), "hyper_parameters": {"lr": 1}},
        ["'model.'", "state_dict"],
    ),
    "compiled": (lambda: prefixed("_orig_mod."), ["'_orig_mod.'"]),
    "compiled, then parallel": (lambda: prefixed("module._orig_mod."), ["'module._orig_mod.'"]),
    "any prefix": (lambda: prefixed("net.backbone."), ["'net.backbone.'"]),
    "averaged": (averaged, ["'module.'"]),
}


@pytest.mark.parametrize("kind", SUPPORTED)
def test_common_wrappers_are_removed_and_reported(kind: str, tmp_path: Path) -> None:
    make, parts = SUPPORTED[kind]
    torch.save(make(), tmp_path / "w.pt")
    net = network(1)

    notes = checkpoints.load(net, tmp_path / "w.pt")

    assert equal(states(net), WEIGHTS)
    assert all(any(part in note for note in notes) for part in parts) and bool(notes) == bool(parts), notes


def test_prefix_of_the_network_is_added(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "w.pt")
    outer = nn.Module()
    outer.model = network(1)

    checkpoints.load(outer, tmp_path / "w.pt")

    assert equal(states(outer.model), WEIGHTS)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_safetensors_are_read(name: str, prefix: str, tmp_path: Path) -> None:
    """The content determines the format, not the name of the file."""
    (tmp_path / name).write_bytes(safetensors(prefixed(prefix), format="pt"))
    net = network(1)

    checkpoints.load(net, tmp_path / name)

    assert equal(states(net), WEIGHTS)


def test_safetensors_equal_the_package(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch")
    kinds = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
    tensors = {str(kind): (torch.randn(3, 5) * 9).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 4)}
    package.save_file(tensors, tmp_path / "w.safetensors", metadata={"format": "pt"})

    (found,) = checkpoints.read(tmp_path / "w.safetensors")

    assert found.tensors.keys() == tensors.keys()
    for name, value in package.load_file(tmp_path / "w.safetensors").items():
        assert torch.equal(found.tensors[name], value) and found.tensors[name].dtype == value.dtype, name


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_are_converted_to_the_precision_of_the_network(kind: torch.dtype, tmp_path: Path) -> None:
    weights = {name: value.to(kind) if value.is_floating_point() else value for name, value in WEIGHTS.items()}
    torch.save(weights, tmp_path / "w.pt")
    net = network(1)

    (note,) = checkpoints.load(net, tmp_path / "w.pt")

    assert note == "8 tensors converted to the network's precision"
    assert equal(states(net), {name: value.to(WEIGHTS[name].dtype) for name, value in weights.items()})


def test_every_mismatch_is_listed_and_nothing_is_loaded(tmp_path: Path) -> None:
    weights: dict[str, Tensor] = dict(WEIGHTS)
    weights["3.weight"] = torch.zeros(10, 8)
    weights["0.bias"] = torch.full((8,), float("nan"))
    weights["1.weight"] = torch.full((8,), float("inf"))
    weights["1.bias"] = torch.zeros(8, dtype=torch.int8)
    weights["extra.weight"] = torch.zeros(1)
    del weights["3.bias"]
    torch.save(weights, tmp_path / "w.pt")
    net = network(1)
    before = states(net)

    with pytest.raises(BadCheckpoint) as caught:
        checkpoints.load(net, tmp_path / "w.pt")

    assert str(caught.value) == (
        "Cannot load w.pt into Sequential: 1 missing key (3.bias); "
        "1 unexpected key (extra.weight); "
        "1 shape mismatch (3.weight: [10, 8] in the file, [4, 8] in the network); "
        "1 dtype mismatch (1.bias: torch.int8 in the file, torch.float32 in the network); "
        "2 NaN or infinite tensors (0.bias (8 values), 1.weight (8 values)). No weights were loaded."
    )
    assert equal(states(net), before)


def test_file_of_a_different_network_is_reported(tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Linear(8, 4)).state_dict() | {"a.b": torch.zeros(1)}, tmp_path / "w.pt")

    with pytest.raises(BadCheckpoint, match="6 missing keys .* The file probably belongs to a different network."):
        checkpoints.load(network(), tmp_path / "w.pt")


def test_overflow_in_the_conversion_is_reported(tmp_path: Path) -> None:
    torch.save({**WEIGHTS, "3.bias": torch.full((4,), 1e300, dtype=torch.float64)}, tmp_path / "w.pt")

    with pytest.raises(BadCheckpoint, match=r"1 NaN or infinite tensor \(3.bias \(4 values\)\)"):
        checkpoints.load(network(), tmp_path / "w.pt")


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


class Runs:
    """An object whose pickle runs code: opening it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["whole network", "arguments", "code", "code in a plain pickle"])
def test_a_pickle_with_objects_is_not_opened(kind: str, tmp_path: Path) -> None:
    ran, path = tmp_path / "ran", tmp_path / "w.pt"
    if kind == "code in a plain pickle":
        path.write_bytes(pickle.dumps(Runs(ran)))
    else:
        objects = {"whole network": network(), "arguments": {"state_dict": WEIGHTS, "args": argparse.Namespace(a=1)}}
        torch.save(objects.get(kind, {"a": Runs(ran)}), path)

    with pytest.raises(
        BadCheckpoint, match="not opened, because opening it could run arbitrary code. If you trust the file"
    ):
        checkpoints.load(network(), path)

    assert not ran.exists()


def test_torchscript_program_is_reported(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(network().eval(), torch.zeros(1, 3, 3, 3)), tmp_path / "w.pt")

    with pytest.raises(
        BadCheckpoint, match="is a TorchScript program, not a file of weights. Save only its weights: torch"
    ):
        checkpoints.load(network(), tmp_path / "w.pt")


EMPTY: dict[str, Any] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def header(entries: dict[str, Any]) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def broken() -> dict[str, tuple[str, bytes, str]]:
    whole = safetensors(WEIGHTS)
    overlong = whole.replace(b'"data_offsets": [0,', b'"data_offsets": [9,')
    return {
        "empty": ("w.pt", b"", "is empty"),
        "text": ("w.pt", b"hello\n" * 9, "is neither a safetensors nor a torch.save file"),
        "a web page": ("w.pt", b"<html><body>404</body></html>", "is neither a safetensors nor a torch.save file"),
        "noise": ("w.pt", bytes(range(7, 250)) * 20, "is neither a safetensors nor a torch.save file"),
        "noise as safetensors": ("w.safetensors", bytes(range(7, 250)) * 20, "is not a safetensors file"),
        "truncated": ("w.safetensors", whole[:-10], "is damaged: '3.bias' should have 16 bytes"),
        "truncated header": ("w.safetensors", whole[:40], "is not a safetensors file or is truncated"),
        "invalid JSON": ("w.safetensors", struct.pack("<Q", 9) + b"{" * 40, "its header cannot be read"),
        "wrong offsets": ("w.safetensors", overlong, "is damaged: '0.weight' should have 864 bytes"),
        "one offset": ("w.safetensors", whole.replace(b"[0, 864]", b"[0     ]"), "its header cannot be read"),
        "negative shape": (
            "w.safetensors",
            whole.replace(b"[8, 3, 3, 3]", b"[8,-3, 3, 3]"),
            "its header cannot be read",
        ),
        "unknown dtype": (
            "w.safetensors",
            whole.replace(b"F32", b"F99"),
            "Unsupported dtype F99 of '0.weight' in w.safetensors",
        ),
        "many tensors": ("w.safetensors", header({f"k{k}": EMPTY for k in range(10_001)}), "has 10,001 tensors"),
        "long header": ("w.safetensors", header({"k" * 2_000_000: EMPTY}), "has a header of 2.0 MB. The maximum is 2"),
        "many dimensions": ("w.safetensors", header({"a": EMPTY | {"shape": [1] * 17}}), "its header cannot be read"),
        "long dimensions": (
            "w.safetensors",
            header({"a": EMPTY | {"shape": [2**60] * 30_000}}),
            "its header cannot be read",
        ),
        "a long number": ("w.safetensors", header({"a": EMPTY | {"shape": [10**4000]}}), "its header cannot be read"),
        "huge header": ("w.safetensors", struct.pack("<Q", 1 << 62) + b"{}", "is not a safetensors file"),
    }


@pytest.mark.parametrize("kind", broken())
def test_damaged_file_is_reported(kind: str, tmp_path: Path) -> None:
    name, content, message = broken()[kind]
    (tmp_path / name).write_bytes(content)

    with pytest.raises(BadCheckpoint, match=message):
        checkpoints.load(network(), tmp_path / name)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("lost", [100, 400, 1500])
def test_truncated_file_is_reported(older: bool, lost: int, tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "w.pt", _use_new_zipfile_serialization=not older)
    content = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(content[:-lost])

    with pytest.raises(BadCheckpoint, match="is damaged or truncated. Download or save it again"):
        checkpoints.load(network(), tmp_path / "w.pt")


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, {0: torch.zeros(1)}])
def test_file_without_weights_is_reported(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")

    with pytest.raises(BadCheckpoint, match="contains no weights"):
        checkpoints.load(network(), tmp_path / "w.pt")


def test_missing_file_and_folder_are_reported(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="does not exist. Use a .safetensors file"):
        checkpoints.load(network(), tmp_path / "none.pt")
    with pytest.raises(BadCheckpoint, match="is a folder. Use a .safetensors file"):
        checkpoints.load(network(), tmp_path)


def test_meta_tensors_are_rejected(tmp_path: Path) -> None:
    torch.save({name: value.to("meta") for name, value in WEIGHTS.items()}, tmp_path / "w.pt")

    with pytest.raises(BadCheckpoint, match="0.weight: not a dense tensor"):
        checkpoints.load(network(), tmp_path / "w.pt")
