"""Weights from a file into a network: read without running any code, checked against the network, then loaded whole.

`.safetensors` files are read here; anything else by `torch.load(weights_only=True)`. The usual wrappers are understood:
`{"state_dict": ...}` and its kin, and prefixes such as `module.` and `_orig_mod.`; what was taken off is said. Names,
shapes, kinds of numbers and finiteness are compared before anything is written: a network is loaded whole or not at
all.

    BadCheckpoint(RuntimeError)    the file's name, and every reason why it cannot be loaded
"""

from __future__ import annotations

import json
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""The kinds of numbers in safetensors files that a network can hold."""
LARGEST_HEADER = 100_000_000
"""Bytes of a safetensors header; the format's own limit."""
WRAPPERS = ("state_dict", "model_state_dict", "model", "network", "net", "module", "weights", "params")
"""Where training scripts put the weights, the likeliest first; any other key comes after these."""
DEPTH = 4
"""How many mappings deep the weights are looked for."""
LISTED = 12
"""Names in a sentence; more are counted."""
SAFE = (
    "Where you trust the file, save its weights alone: torch.save(torch.load(FILE, weights_only=False).state_dict(), "
    "'weights.pt'), with ['state_dict'] in place of .state_dict() where the file holds a dictionary."
)


class BadCheckpoint(RuntimeError):
    """A file of weights that cannot be read, or that does not fit the network."""


@dataclass(frozen=True)
class Weights:
    """One mapping of names to tensors found in a file, under the keys of `path`."""

    path: tuple[str, ...]
    tensors: dict[str, Tensor]


def load(network: nn.Module, path: str | Path) -> list[str]:
    """Load the file's weights into the network, in place and whole.

    Returns  what was done besides: wrappers and prefixes that were taken off, tensors that changed their precision
    Errors   BadCheckpoint, and then nothing in the network has changed
    """
    path = Path(path)
    found = read(path)
    expected = _tensors(network)
    weights, names = max(
        ((weights, names) for weights in found for names in _spellings(list(weights.tensors), list(expected))),
        key=lambda pair: _fit(pair[1], expected),
    )
    problems = mismatches({new: weights.tensors[old] for old, new in names.items()}, network)
    if problems:
        share = sum(new in expected for new in names.values()) / max(1, len(expected))
        other = "It is the file of another network: " if share < 0.5 else ""
        raise BadCheckpoint(
            f"{path.name} does not fit the network ({type(network).__name__}), and nothing was loaded. {other}"
            f"{'; '.join(problems)}."
        )
    notes = [*_said(weights, found, names)]
    state, changed = dict(network.state_dict()), 0
    for old, new in names.items():
        tensor = weights.tensors[old]
        if new in expected:
            changed += tensor.dtype != expected[new].dtype
            state[new] = tensor
    if changed:
        notes.append(f"{_count(changed, 'tensor')} took the network's precision")
    network.load_state_dict(state, strict=True)
    return notes


def mismatches(tensors: Mapping[str, Tensor], network: nn.Module) -> list[str]:
    """Every reason why these tensors are not this network's weights; empty where they are."""
    expected = _tensors(network)
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    lost = sorted(_missing(tensors, expected))
    surplus = [name for name in tensors if name not in expected]
    shapes, kinds, values = [], [], []
    for name in tensors.keys() & expected.keys():
        mine, theirs = expected[name], tensors[name]
        if not is_lazy(mine) and mine.shape != theirs.shape:
            shapes.append(f"{name}: {list(theirs.shape)} in the file, {list(mine.shape)} in the network")
        elif reason := _wrong_kind(theirs, mine):
            kinds.append(f"{name}: {reason}")
        elif mine.is_floating_point() and (bad := _not_finite(theirs.to(mine.dtype), name in parameters)):
            values.append(f"{name} ({_count(bad, 'value')})")
    lists = {
        "missing in the file": lost,
        "unexpected in the file": surplus,
        "other shapes": sorted(shapes),
        "other kinds of numbers": sorted(kinds),
        "NaN or infinite": sorted(values),
    }
    return [f"{title} ({len(items)}): {_listed(items)}" for title, items in lists.items() if items]


def not_finite(network: nn.Module) -> list[str]:
    """The network's parameters with NaN or infinity, and its buffers with NaN."""
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    return [
        name
        for name, tensor in _tensors(network).items()
        if not is_lazy(tensor) and tensor.is_floating_point() and _not_finite(tensor, name in parameters)
    ]


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """The state dict without what layers put there besides tensors."""
    return {name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)}


def read(path: Path) -> list[Weights]:
    """Every mapping of names to tensors in the file, the likeliest first.

    Errors   BadCheckpoint
    """
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "does not exist"
        raise BadCheckpoint(f"{path} {kind}. Give a .safetensors file, or a file of torch.save with a state dict.")
    try:
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError as error:
        raise BadCheckpoint(f"{path.name} cannot be read: {error.strerror or error}.") from error
    if not start:
        raise BadCheckpoint(f"{path.name} is empty. Download or save it anew.")
    if start[8:] == b"{" or (path.suffix == ".safetensors" and not _was_torch(path)):
        return [Weights((), _safetensors(path))]
    found = sorted(_state_dicts(_unpickled(path)), key=_likelihood)
    if not found:
        raise BadCheckpoint(f"{path.name} holds no weights: nothing in it is a mapping of names to tensors. {SAFE}")
    return found


def _safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; every offset is checked against the file.

    Source   github.com/huggingface/safetensors, "Format"
    """
    tensors, total = {}, path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(LARGEST_HEADER, total - 8):
            raise BadCheckpoint(f"{path.name} is no safetensors file, or its end is missing. Download or save it anew.")
        table = _table(path, file.read(length))
        for name, (kind, shape, first, last) in table.items():
            size = math.prod(shape) * DTYPES[kind].itemsize
            if last - first != size or last > total - 8 - length:
                raise BadCheckpoint(
                    f"{path.name} is damaged: {name!r} should have {size} bytes, up to byte {last} of "
                    f"{total - 8 - length}. Download or save it anew."
                )
            file.seek(8 + length + first)
            data = bytearray(file.read(size))  # one at a time: a file may be as large as the memory
            flat = torch.frombuffer(data, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
            tensors[name] = flat.view(DTYPES[kind]).view(shape)
    return tensors


def _table(path: Path, header: bytes) -> dict[str, tuple[str, list[int], int, int]]:
    """Kind, shape, first and last byte of every tensor in a safetensors header."""
    table = {}
    try:
        for name, entry in json.loads(header).items():
            if name != "__metadata__":
                kind, shape, (first, last) = str(entry["dtype"]), [*entry["shape"]], entry["data_offsets"]
                if not all(type(number) is int and number >= 0 for number in (first, last, *shape)):
                    raise ValueError("no valid shape")
                table[name] = kind, shape, first, last
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{path.name} is no safetensors file: its header cannot be read.") from error
    for name, (kind, *_) in table.items():
        if kind not in DTYPES:
            raise BadCheckpoint(f"{path.name} holds {name!r} as {kind}, which a network cannot run. Save it as floats.")
    return table


def _unpickled(path: Path) -> Any:
    """What torch.load gives, without running any code of the file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(_refused_pickle(path, str(error))) from error
    except Exception as error:  # torch raises whatever its readers of three formats come upon
        if "TorchScript" in str(error):
            raise BadCheckpoint(
                f"{path.name} is a TorchScript program, not a file of weights. Save its weights: "
                "torch.save(torch.jit.load(FILE).state_dict(), 'weights.pt')."
            ) from error
        damaged = "is damaged, or its end is missing" if _was_torch(path) else "is neither safetensors nor torch.save's"
        raise BadCheckpoint(f"{path.name} {damaged}. Download or save it anew.") from error


def _refused_pickle(path: Path, reason: str) -> str:
    """Why a pickle was not opened; torch says which name it met, or that the bytes are no pickle of its own."""
    # Without its last paragraph, torch's message has "GLOBAL package.Name was not an allowed global".
    names = re.findall(r"(?:GLOBAL|Unsupported global: GLOBAL|class) ([\w.]+)", reason)
    if names or ("Unsupported operand" in reason and _was_torch(path)):
        held = f"a Python object ({names[0]})" if names else "a Python object"
        opened = "To open it could run any code in it, so it was not opened"
        return f"{path.name} holds {held} besides tensors. {opened}. {SAFE}"
    return f"{path.name} is neither safetensors nor torch.save's. Download or save it anew."


def _was_torch(path: Path) -> bool:
    """Whether the file begins as torch.save's do: a zip archive, or a pickle of the older format."""
    with open(path, "rb") as file:
        start = file.read(4)
    return (
        zipfile.is_zipfile(path) or start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05")
    )


def _state_dicts(value: Any, path: tuple[str, ...] = ()) -> Iterator[Weights]:
    """Every mapping of names to tensors inside; other values beside the tensors do not belong to it."""
    if not isinstance(value, Mapping) or len(path) > DEPTH or not all(isinstance(key, str) for key in value):
        return
    tensors = {name: item for name, item in value.items() if isinstance(item, Tensor)}
    if tensors:
        yield Weights(path, tensors)
    for key, item in value.items():
        yield from _state_dicts(item, (*path, key))


def _likelihood(weights: Weights) -> tuple[int, int]:
    """Sorts the mappings of a file: by the usual names of wrappers, averages after them, optimizers last."""
    key = weights.path[0] if weights.path else WRAPPERS[0]
    rank = WRAPPERS.index(key) if key in WRAPPERS else len(WRAPPERS) + ("optim" in key)
    return rank, len(weights.path)


def _spellings(names: list[str], expected: list[str]) -> Iterator[dict[str, str]]:
    """The file's names as they may be meant: as they are, without or with what a wrapper puts before them."""
    steps: list[Callable[[str], str]] = [lambda name: name, lambda name: re.sub(r"(^|\.)_orig_mod\.", r"\1", name)]
    for step in steps:
        plain = {name: step(name) for name in names}
        yield plain
        kept = {old: new for old, new in plain.items() if new != "n_averaged"}  # of torch's AveragedModel
        while prefix := _common_prefix(list(kept.values())):
            kept = {old: new.removeprefix(prefix) for old, new in kept.items()}
            yield kept
        rest, put = expected, ""
        while prefix := _common_prefix(rest):
            rest, put = [name.removeprefix(prefix) for name in rest], put + prefix
            yield {old: put + new for old, new in plain.items()}


def _common_prefix(names: list[str]) -> str:
    """The first part, with its dot, that all names share; empty where there is none."""
    first = {name.partition(".")[0] for name in names if "." in name}
    return f"{next(iter(first))}." if len(first) == 1 and all("." in name for name in names) else ""


def _fit(names: Mapping[str, str], expected: Mapping[str, Tensor]) -> int:
    """How many names agree, less those that do not; `max` takes the first of equals, which is the plainest."""
    agree = sum(new in expected for new in names.values())
    return 2 * agree - len(names)


def _said(weights: Weights, found: list[Weights], names: Mapping[str, str]) -> Iterator[str]:
    """What was taken from the file, and what was left."""
    if weights.path:
        yield f"the weights were under {_key(weights)}"
    prefixes = {old.removesuffix(new) for old, new in names.items() if old != new and old.endswith(new)}
    if prefixes:
        yield f"{_listed(sorted(map(repr, prefixes)))} was taken off the names"
    elif any(old != new for old, new in names.items()):
        yield "the names were brought to the network's spelling"
    others = [other for other in found if other is not weights and len(other.tensors) == len(weights.tensors)]
    if others:
        yield f"{_listed([_key(other) for other in others])} was not used"


def _key(weights: Weights) -> str:
    return "".join(f"[{key!r}]" for key in weights.path) or "the top of the file"


def _missing(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Iterator[str]:
    """Names without a tensor in the file; tied weights are stored once, batch norm's counter has no effect."""
    given = {_memory(expected[name]) for name in tensors if name in expected}
    for name, tensor in expected.items():
        tied = _memory(tensor) in given
        if name not in tensors and not tied and not name.endswith("num_batches_tracked"):
            yield name


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for two names of one tensor."""
    if is_lazy(tensor) or not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _wrong_kind(theirs: Tensor, mine: Tensor) -> str:
    """Why the file's tensor cannot become the network's; any floats may, and integers of any length."""
    if theirs.is_meta or theirs.layout != torch.strided or theirs.is_quantized:
        return "no plain tensor"
    same = theirs.is_floating_point() == mine.is_floating_point() and theirs.is_complex() == mine.is_complex()
    if same and (theirs.dtype == torch.bool) == (mine.dtype == torch.bool):
        return ""
    return f"{theirs.dtype} in the file, {mine.dtype} in the network"


def _not_finite(tensor: Tensor, parameter: bool) -> int:
    """How many values are NaN or, in a parameter, infinite; a buffer may be a mask with infinities."""
    return int((~tensor.isfinite() if parameter else tensor.isnan()).sum())


def _listed(items: list[str]) -> str:
    more = len(items) - LISTED
    return ", ".join(items[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"
