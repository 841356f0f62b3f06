"""Load weights from a file into a network without running any code in the file.

`.safetensors` files are read here, all others with `torch.load(weights_only=True)`. Common wrappers are supported, such
as `{"state_dict": ...}`, and prefixes such as `module.` and `_orig_mod.`; notes report what was removed. Names, shapes,
dtypes and finiteness are compared before anything is written: either all weights are loaded, or none.

    BadCheckpoint(RuntimeError)    the name of the file, and every reason why it cannot be loaded
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
import zipfile
import zlib
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
"""The dtypes in safetensors files that a network can use."""
LARGEST_HEADER = 2_000_000
"""Bytes of a safetensors header; one of 1,000 tensors has 100 kB. JSON needs up to 20 times as much memory."""
MOST_TENSORS = 10_000
"""Tensors in a safetensors file; the largest networks for images have 3,000."""
MOST_DIMENSIONS = 16
"""Dimensions of a tensor; layers have up to five."""
MOST_DIGITS = 18
"""Digits of a number in a safetensors header, which is a position in a file."""
WRAPPERS = ("state_dict", "model_state_dict", "model", "network", "net", "module", "weights", "params")
"""Keys under which training scripts store the weights, the most likely first. Any other key comes after these."""
DEPTH = 4
"""Depth of nested mappings in which the weights are searched."""
MOST_MAPPINGS = 32
"""Mappings in a file that are compared with the network; training scripts write about five."""
MOST_PREFIXES = 16
"""Components of a prefix that all names share."""
LARGEST_PICKLE = 8_000_000
"""Bytes of the pickle in an archive, without the tensors; one of 1,000 tensors has 150 kB."""
MOST_EXPANDED = 16_000_000
"""Bytes by which an archive may be larger than its file; torch.save does not compress."""
LISTED = 12
"""Names that a message lists; the rest is counted."""
SAFE = (
    "If you trust the file, re-save only its weights: torch.save(torch.load(FILE, weights_only=False).state_dict(), "
    "'weights.pt'). If the file contains a dictionary, use ['state_dict'] instead of .state_dict()."
)


RESAVE = "Save only the weights of the network, without the metadata of its training."
NOT_COMPRESSED = "torch.save does not compress. Download or save it again."
BYTEARRAY = re.compile(rb"c(builtins|__builtin__)\nbytearray\n")
"""The start of an object for which torch.load reserves as many bytes as a number in the file says."""


class BadCheckpoint(RuntimeError):
    """A file of weights that cannot be read, or that does not match the network."""


@dataclass(frozen=True)
class Weights:
    """One mapping of names to tensors in a file, stored under the keys in `path`."""

    path: tuple[str, ...]
    tensors: dict[str, Tensor]


def load(network: nn.Module, path: str | Path) -> list[str]:
    """Load the weights in a file into the network in place, either all of them or none.

    Returns  notes: wrappers and prefixes that were removed, and tensors whose precision was converted
    Errors   BadCheckpoint, in which case the network is unchanged
    """
    path = Path(path)
    mappings = read(path)
    expected = _tensors(network)
    weights, names = max(
        ((weights, names) for weights in mappings for names in _renamings(list(weights.tensors), list(expected))),
        key=lambda pair: _fit(pair[1], expected),
    )
    problems = mismatches({new: weights.tensors[old] for old, new in names.items()}, network)
    if problems:
        share = sum(new in expected for new in names.values()) / max(1, len(expected))
        other = " The file probably belongs to a different network." if share < 0.5 else ""
        raise BadCheckpoint(
            f"Cannot load {path.name} into {type(network).__name__}: {'; '.join(problems)}. No weights were loaded."
            f"{other}"
        )
    notes = [*_notes(weights, mappings, names)]
    state, changed = dict(network.state_dict()), 0
    for old, new in names.items():
        tensor = weights.tensors[old]
        if new in expected:
            changed += tensor.dtype != expected[new].dtype
            state[new] = tensor
    if changed:
        notes.append(f"{_count(changed, 'tensor')} converted to the network's precision")
    network.load_state_dict(state, strict=True)
    return notes


def mismatches(tensors: Mapping[str, Tensor], network: nn.Module) -> list[str]:
    """Return every reason why these tensors do not match the network; empty if they match."""
    expected = _tensors(network)
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    missing = sorted(_missing(tensors, expected))
    surplus = [name for name in tensors if name not in expected]
    shapes, kinds, values = [], [], []
    for name in tensors.keys() & expected.keys():
        own, stored = expected[name], tensors[name]
        if not is_lazy(own) and own.shape != stored.shape:
            shapes.append(f"{name}: {list(stored.shape)} in the file, {list(own.shape)} in the network")
        elif reason := _wrong_dtype(stored, own):
            kinds.append(f"{name}: {reason}")
        elif own.is_floating_point() and (count := _not_finite(stored.to(own.dtype), name in parameters)):
            values.append(f"{name} ({_count(count, 'value')})")
    lists = {
        "missing key": missing,
        "unexpected key": surplus,
        "shape mismatch": sorted(shapes),
        "dtype mismatch": sorted(kinds),
        "NaN or infinite tensor": sorted(values),
    }
    plurals = {"shape mismatch": "shape mismatches", "dtype mismatch": "dtype mismatches"}
    return [
        f"{len(items)} {title if len(items) == 1 else plurals.get(title, title + 's')} ({_join(items)})"
        for title, items in lists.items()
        if items
    ]


def not_finite(network: nn.Module) -> list[str]:
    """Return the names of parameters with NaN or infinite values, and of buffers with NaN values."""
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    return [
        name
        for name, tensor in _tensors(network).items()
        if not is_lazy(tensor) and tensor.is_floating_point() and _not_finite(tensor, name in parameters)
    ]


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the state dict; layers may store other values there."""
    return {name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)}


def read(path: Path) -> list[Weights]:
    """Return every mapping of names to tensors in the file, the most likely first.

    Errors   BadCheckpoint
    """
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "does not exist"
        raise BadCheckpoint(f"{path} {kind}. Use a .safetensors file, or a state dict saved with torch.save.")
    try:
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError as error:
        raise BadCheckpoint(f"Cannot read {path.name}: {error.strerror or error}.") from error
    if not start:
        raise BadCheckpoint(f"{path.name} is empty. Download or save it again.")
    if start[8:] == b"{" or (path.suffix == ".safetensors" and not _was_torch(path)):
        return [Weights((), _safetensors(path))]
    mappings = sorted(itertools.islice(_state_dicts(_unpickle(path)), MOST_MAPPINGS), key=_likelihood)
    if not mappings:
        raise BadCheckpoint(f"{path.name} contains no weights (no mapping of names to tensors). {SAFE}")
    return mappings


def _safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, checking every offset.

    Source   github.com/huggingface/safetensors, "Format"
    """
    tensors, total = {}, path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > total - 8:
            raise BadCheckpoint(f"{path.name} is not a safetensors file or is truncated. Download or save it again.")
        if length > LARGEST_HEADER:
            megabytes, most = length / 1e6, LARGEST_HEADER // 10**6
            raise BadCheckpoint(f"{path.name} has a header of {megabytes:.1f} MB. The maximum is {most} MB. {RESAVE}")
        table = _table(path, file.read(length))
        sizes = {name: math.prod(shape) * DTYPES[kind].itemsize for name, (kind, shape, _, _) in table.items()}
        for name, (_, _, first, last) in table.items():
            if last - first != sizes[name] or last > total - 8 - length:
                raise BadCheckpoint(
                    f"{path.name} is damaged: {name!r} should have {sizes[name]} bytes and end at byte {last} of "
                    f"{total - 8 - length}. Download or save it again."
                )
        if sum(sizes.values()) > total - 8 - length:
            raise BadCheckpoint(f"{path.name} is damaged: its tensors overlap. Download or save it again.")
        for name, (kind, shape, first, _) in table.items():
            size = sizes[name]
            file.seek(8 + length + first)
            data = bytearray(file.read(size))  # one at a time: a file may be as large as the memory
            flat = torch.frombuffer(data, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
            tensors[name] = flat.view(DTYPES[kind]).view(shape)
    return tensors


def _table(path: Path, header: bytes) -> dict[str, tuple[str, list[int], int, int]]:
    """Return dtype, shape, first and last byte of every tensor in a safetensors header."""
    table = {}
    try:
        entries = json.loads(header, parse_int=_number)
        if len(entries) > MOST_TENSORS:
            raise BadCheckpoint(f"{path.name} has {len(entries):,} tensors. The maximum is {MOST_TENSORS:,}. {RESAVE}")
        for name, entry in entries.items():
            if name != "__metadata__":
                kind, shape, (first, last) = str(entry["dtype"]), [*entry["shape"]], entry["data_offsets"]
                if len(shape) > MOST_DIMENSIONS:
                    raise ValueError("too many dimensions")
                if not all(type(number) is int and number >= 0 for number in (first, last, *shape)):
                    raise ValueError("no valid shape")
                table[name] = kind, shape, first, last
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{path.name} is not a safetensors file: its header cannot be read.") from error
    for name, (kind, *_) in table.items():
        if kind not in DTYPES:
            raise BadCheckpoint(f"Unsupported dtype {kind} of {name!r} in {path.name}. Save it as a float dtype.")
    return table


def _number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError("no position in a file")
    return int(digits)


def _unpickle(path: Path) -> Any:
    """Return the content of a file saved with torch.save, without running any code in it."""
    _check_content(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(_pickle_message(path, str(error))) from error
    except Exception as error:  # torch.load raises many types of errors for its three formats
        if "TorchScript" in str(error):
            raise BadCheckpoint(
                f"{path.name} is a TorchScript program, not a file of weights. Save only its weights: "
                "torch.save(torch.jit.load(FILE).state_dict(), 'weights.pt')."
            ) from error
        damaged = "is damaged or truncated" if _was_torch(path) else "is neither a safetensors nor a torch.save file"
        raise BadCheckpoint(f"{path.name} {damaged}. Download or save it again.") from error


def _check_content(path: Path) -> None:
    """Refuse files that need much more memory than their size: compressed archives, and objects made from a number.

    Errors   BadCheckpoint
    """
    size, pickles = path.stat().st_size, []
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > size + MOST_EXPANDED:
                raise BadCheckpoint(
                    f"{path.name} is compressed or damaged: its parts are larger than the file. {NOT_COMPRESSED}"
                )
            for entry in entries:
                if entry.filename.endswith("/data.pkl"):
                    if entry.file_size > LARGEST_PICKLE:
                        megabytes = entry.file_size / 1e6
                        raise BadCheckpoint(f"{path.name} has {megabytes:.0f} MB besides its tensors. {SAFE}")
                    pickles.append(archive.read(entry))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError) as error:
        if isinstance(error, BadCheckpoint):
            raise
        if size:  # the older format, in which the pickles come first
            with open(path, "rb") as file:
                pickles.append(file.read(LARGEST_PICKLE))
    if any(BYTEARRAY.search(content) for content in pickles):
        raise BadCheckpoint(_pickle_message(path, "GLOBAL bytearray"))


def _pickle_message(path: Path, reason: str) -> str:
    """Return why a pickle was not opened: torch names the object that it refused, or did not recognize the pickle."""
    # Without its last paragraph, torch's message has "GLOBAL package.Name was not an allowed global".
    names = re.findall(r"(?:GLOBAL|Unsupported global: GLOBAL|class) ([\w.]+)", reason)
    if names or ("Unsupported operand" in reason and _was_torch(path)):
        content = f"a Python object ({names[0]})" if names else "a Python object"
        return f"{path.name} contains {content}. It was not opened, because opening it could run arbitrary code. {SAFE}"
    return f"{path.name} is neither a safetensors nor a torch.save file. Download or save it again."


def _was_torch(path: Path) -> bool:
    """Return whether the file starts like a file of torch.save: a zip archive, or a pickle in the older format."""
    with open(path, "rb") as file:
        start = file.read(4)
    return (
        zipfile.is_zipfile(path) or start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05")
    )


def _state_dicts(value: Any, path: tuple[str, ...] = (), visited: dict[int, object] | None = None) -> Iterator[Weights]:
    """Yield every nested mapping of names to tensors once; other values in the same mapping are ignored."""
    visited = {} if visited is None else visited
    if not isinstance(value, Mapping) or len(path) > DEPTH or not all(isinstance(key, str) for key in value):
        return
    if id(value) in visited:
        return
    visited[id(value)] = value
    tensors = {name: item for name, item in value.items() if isinstance(item, Tensor)}
    if tensors:
        yield Weights(path, tensors)
    for key, item in value.items():
        yield from _state_dicts(item, (*path, key), visited)


def _likelihood(weights: Weights) -> tuple[int, int]:
    """Return a sort key for the mappings of a file: common wrapper names first, averages next, optimizers last."""
    key = weights.path[0] if weights.path else WRAPPERS[0]
    rank = WRAPPERS.index(key) if key in WRAPPERS else len(WRAPPERS) + ("optim" in key)
    return rank, len(weights.path)


def _renamings(names: list[str], expected: list[str]) -> Iterator[dict[str, str]]:
    """Yield candidate mappings of the file's names to network names: unchanged, with prefixes removed or added."""
    steps: list[Callable[[str], str]] = [lambda name: name, lambda name: re.sub(r"(^|\.)_orig_mod\.", r"\1", name)]
    for step in steps:
        plain = {name: step(name) for name in names}
        yield plain
        renamed = {old: new for old, new in plain.items() if new != "n_averaged"}  # of torch's AveragedModel
        for _ in range(MOST_PREFIXES):
            if not (prefix := _common_prefix(list(renamed.values()))):
                break
            renamed = {old: new.removeprefix(prefix) for old, new in renamed.items()}
            yield renamed
        rest, put = expected, ""
        while prefix := _common_prefix(rest):
            rest, put = [name.removeprefix(prefix) for name in rest], put + prefix
            yield {old: put + new for old, new in plain.items()}


def _common_prefix(names: list[str]) -> str:
    """Return the first component, with its dot, that all names share; empty if there is none."""
    first = {name.partition(".")[0] for name in names if "." in name}
    return f"{next(iter(first))}." if len(first) == 1 and all("." in name for name in names) else ""


def _fit(names: Mapping[str, str], expected: Mapping[str, Tensor]) -> int:
    """Return twice the number of matching names minus the number of names; `max` takes the first, simplest mapping."""
    agree = sum(new in expected for new in names.values())
    return 2 * agree - len(names)


def _notes(weights: Weights, mappings: list[Weights], names: Mapping[str, str]) -> Iterator[str]:
    """Yield what was read from the file and what was ignored."""
    if weights.path:
        yield f"read the weights under {_key(weights)}"
    prefixes = {old.removesuffix(new) for old, new in names.items() if old != new and old.endswith(new)}
    if prefixes:
        yield f"removed the prefix {_join(sorted(map(repr, prefixes)))}"
    elif any(old != new for old, new in names.items()):
        yield "renamed the keys to match the network"
    others = [other for other in mappings if other is not weights and len(other.tensors) == len(weights.tensors)]
    if others:
        yield f"ignored {_join([_key(other) for other in others])}"


def _key(weights: Weights) -> str:
    return "".join(f"[{key!r}]" for key in weights.path) or "the top level of the file"


def _missing(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield names without a tensor in the file. Tied weights are stored once; batch norm's counter has no effect."""
    stored = {_memory(expected[name]) for name in tensors if name in expected}
    for name, tensor in expected.items():
        tied = _memory(tensor) in stored
        if name not in tensors and not tied and not name.endswith("num_batches_tracked"):
            yield name


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for two names of the same tensor."""
    if is_lazy(tensor) or not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _wrong_dtype(stored: Tensor, own: Tensor) -> str:
    """Return why the tensor cannot be converted to the network's; any float dtypes match, and any integer dtypes."""
    if stored.is_meta or stored.layout != torch.strided or stored.is_quantized:
        return "not a dense tensor"
    same_kind = stored.is_floating_point() == own.is_floating_point() and stored.is_complex() == own.is_complex()
    if same_kind and (stored.dtype == torch.bool) == (own.dtype == torch.bool):
        return ""
    return f"{stored.dtype} in the file, {own.dtype} in the network"


def _not_finite(tensor: Tensor, parameter: bool) -> int:
    """Return the number of NaN values and, in a parameter, infinite values; a buffer may be a mask with infinities."""
    return int((~tensor.isfinite() if parameter else tensor.isnan()).sum())


def _join(items: list[str]) -> str:
    more = len(items) - LISTED
    return ", ".join(items[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
