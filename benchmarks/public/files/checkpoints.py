"""Hostile files of weights, loaded in a process that reports time and memory, and whether code was run."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import pickle
import random
import resource
import struct
import subprocess
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, process
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensors
from torch import nn

from benchmarks.public.client import Row, megabytes
from benchmarks.public.files.images import Call, mutations
from saliscope.zoo import checkpoints

SECONDS, MEGABYTES = 1.0, 100.0
MARKER = "hostile-code-was-run"
Files = Iterator[tuple[str, bytes | Callable[[], bytes]]]
"""Names and contents, or functions that make them if that takes a second."""


def network() -> nn.Sequential:
    """Return the network whose weights are loaded."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4))


def files() -> Files:
    """Yield names and contents; those of the good ones start with "good"."""
    yield "good.pt", saved(network().state_dict())
    yield "good.safetensors", tensors(network().state_dict())
    for part in (code, archives, sizes, structures, values, headers, damaged):
        yield from part()


def saved(content: Any, save: Callable[..., Any] = torch.save, **options: Any) -> bytes:
    """Return what torch.save or another function writes."""
    file = io.BytesIO()
    save(content, file, **options)
    return file.getvalue()


def archive(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive as torch.save writes it, with other contents."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as target:
        for name, content in {"version": b"3\n", "byteorder": b"little", **parts}.items():
            target.writestr(f"archive/{name}", content)
    return file.getvalue()


def opcodes(content: bytes) -> bytes:
    """Return an archive with a pickle of these opcodes."""
    return archive({"data.pkl": b"\x80\x02" + content + b"."})


def code() -> Files:
    """Yield pickles that run code."""
    command = f"touch {MARKER}"
    calls = {
        "system": Call(os.system, command),
        "popen": Call(subprocess.Popen, command.split()),
        "exec": Call(exec, f"open({MARKER!r}, 'w')"),
        "eval": Call(eval, f"open({MARKER!r}, 'w')"),
        "getattr": Call(getattr, Call(__import__, "os"), "system"),
        "load": Call(pickle.loads, pickle.dumps(Call(os.system, command))),
        "torch": Call(torch.load, "x"),
        "touch": Call(Path.touch, Path(MARKER)),
    }
    for name, call in calls.items():
        yield from ((f"{name}{protocol}.pkl", pickle.dumps(call, protocol)) for protocol in range(6))
        yield f"{name}.pt", archive({"data.pkl": pickle.dumps({"a": call}, 2)})
        yield f"{name}_old.pt", saved({"a": call}, _use_new_zipfile_serialization=False)
        yield f"{name}.safetensors", pickle.dumps(call, 2)
    yield "module.pt", saved(network())
    yield "build.pt", opcodes(b"cos\nsystem\nq\x00X\x04\x00\x00\x00true\x85R")
    yield "inst.pt", archive({"data.pkl": b"(S'touch " + MARKER.encode() + b"'\nios\nsystem\n."})


def archives() -> Files:
    """Yield zip bombs and archives with wrong names."""
    zeros, empty = bytes(200 * 2**20), b"\x80\x02}."
    table = tensor_pickle("0", 100_000_000, (100_000_000,))
    many = {f"data/{k}": b"" for k in range(60_000)}
    bombs = {"pickle": {"data.pkl": zeros}, "data": {"data.pkl": table, "data/0": zeros}}
    for name, parts in (bombs | {"version": {"data.pkl": empty, "version": zeros}}).items():
        yield f"bomb_{name}.pt", functools.partial(archive, parts, zipfile.ZIP_DEFLATED)
    yield "many_entries.pt", functools.partial(archive, many | {"data.pkl": empty})
    yield "outside.pt", archive({"../../outside": b"x", "data.pkl": empty})
    yield "no_pickle.pt", archive({})
    yield "docx.pt", archive({"word/document.xml": b"<x/>"})


def text(value: str) -> bytes:
    """Return the opcode of a text."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def numbers(*row: int) -> bytes:
    """Return the opcodes of integers of any size."""
    return b"".join(b"\x8a" + bytes([len(data := pickle.encode_long(value) or b"\0")]) + data for value in row)


def tensor_pickle(key: str, count: int, shape: tuple[int, ...], stride: tuple[int, ...] = (1,), at: int = 0) -> bytes:
    """Return the pickle of one tensor as torch.save writes it, with any numbers."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + numbers(count) + b"tQ"
    layout = numbers(at) + b"(" + numbers(*shape) + b"t(" + numbers(*stride) + b"t"
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + layout + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}" + text("3.bias") + call + b"s."


def sizes() -> Files:
    """Yield tensors with other sizes than their data, and objects that need memory."""
    for name, given in {
        "stride_0": ("0", 4, (10**6, 10**6), (0, 0)),
        "stride_0_fits": ("0", 4, (8, 3, 3, 3), (0, 0, 0, 0)),
        "huge": ("0", 10**12, (10**12,)),
        "negative": ("0", 4, (-4,)),
        "negative_stride": ("0", 4, (4,), (-1,)),
        "overflow": ("0", 4, (2**62, 8), (1, 1)),
        "beyond": ("0", 4, (400,)),
        "many_axes": ("0", 4, (1,) * 500, (1,) * 500),
        "offset": ("0", 4, (1,), (1,), 2**40),
        "other_key": ("../../etc/passwd", 4, (4,)),
    }.items():
        yield f"{name}.pt", archive({"data.pkl": tensor_pickle(*given), "data/0": bytes(16)})
    for module, name in (("builtins", "bytearray"), ("torch", "Tensor"), ("torch", "FloatTensor")):
        yield f"{name}.pt", opcodes(f"c{module}\n{name}\n".encode() + numbers(2 * 10**9) + b"\x85R")
    yield "bytes.pt", opcodes(b"cbuiltins\nbytearray\n" + text("a") + text("utf-8") + b"\x86R")
    yield "text.pt", opcodes(b"}" + text("a" * 30_000_000) + b"Ns")
    yield "meta.pt", saved({"3.bias": torch.empty(10**12, device="meta")})
    yield "sparse.pt", saved({"3.bias": torch.eye(4).to_sparse()})
    sparse = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0), (10**15,))
    yield "sparse_huge.pt", saved({"3.bias": sparse})


def structures() -> Files:
    """Yield nested and repeated mappings."""
    one = torch.zeros(1)
    inner: Any = {"a": one}
    for _ in range(4):
        inner = {f"k{number}": inner for number in range(200)}
    loop: dict[str, Any] = {"a": one}
    loop["loop"] = loop
    yield "repeated.pt", saved(inner)
    yield "loop.pt", saved(loop)
    yield "many_mappings.pt", saved({f"m{number}": {"a": torch.zeros(1)} for number in range(2000)})
    yield "many_tensors.pt", saved({f"t{number}": torch.zeros(1) for number in range(3000)})
    yield "names.pt", saved({"a." * 100_000 + "weight": one, "\n\x1b[31m<script>": one, "": one, "." * 500: one})
    yield "deep_list.pt", opcodes(b"]" * 200_000 + b"a" * 199_999)
    yield "deep_tuple.pt", opcodes(b")" + b"\x85" * 200_000)
    yield "memo.pt", opcodes(b"}q\x00r\xff\xff\xff\x7fj\xff\xff\xff\x7f")


def values() -> Files:
    """Yield weights of other kinds."""
    good = network().state_dict()
    wrong: dict[str, Any] = {"complex": torch.zeros(4, dtype=torch.complex64), "list": [1.0, 2.0]}
    wrong["quantized"] = torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)
    yield from ((f"value_{name}.pt", saved({**good, "3.bias": value})) for name, value in wrong.items())
    yield "optimizer.pt", saved(torch.optim.SGD(network().parameters(), 0.1).state_dict())
    yield "exported.pt2", saved(torch.export.export(network().eval(), (torch.zeros(1, 3, 3, 3),)), torch.export.save)


def with_header(header: bytes | dict[str, Any], body: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file with any header."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def _many(count: int, shape: int = 0) -> bytes:
    """Return a header with many tensors at the same place."""
    entry = {"dtype": "F32", "shape": [shape], "data_offsets": [0, 4 * shape]}
    return with_header({f"t{k}": entry for k in range(count)}, bytes(4 * shape))


def headers() -> Files:
    """Yield safetensors files with lying headers."""
    shapes = {
        "beyond": "[4]",
        "negative": "[-4]",
        "huge": "[1000000000000]",
        "overflow": "[4611686018427387904, 4]",
        "floats": "[4.0]",
        "text": '["4"]',
        "long_number": f"[{'9' * 4000}]",
        "long_digits": f"[{'9' * 1_900_000}]",
        "many_axes": f"[{','.join(['1'] * 5000)}]",
        "long_axes": f"[{','.join([str(2**60)] * 30_000)}]",
    }
    entry = '{{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}}'.format
    texts = {name: entry("F32", shape, "[0, 16]") for name, shape in shapes.items()}
    texts |= {"backwards": entry("F32", "[4]", "[16, 0]"), "dtype": entry("F7", "[4]", "[0, 16]")}
    texts |= {"nan": '{"a": NaN}', "list": "[1, 2]", "nested": '{"a":' * 5000 + "1" + "}" * 5000}
    texts |= {"brackets": "{" + "[" * 100_000, "spaces": "{" + " " * 30_000_000 + "}"}
    texts |= {part: '{"a":[' + ",".join([part] * (1_900_000 // (len(part) + 1))) + "]}" for part in ("[]", "{}", "1.5")}
    for name, header in texts.items():
        yield f"header_{name}.safetensors", with_header(header.encode(), bytes(8))
    for count, shape in ((10_000, 0), (20_000, 0), (400_000, 0), (1000, 500_000)):
        yield f"header_{count}.safetensors", functools.partial(_many, count, shape)
    for length in (0, 1, 2**31, 2**63, 2**64 - 1, 100_000_000):
        yield f"header_length_{length}.safetensors", with_header(b"{}", bytes(40), length)


def damaged(count: int = 60) -> Files:
    """Yield good files with changed bytes."""
    weights = network().state_dict()
    seeds = [saved(weights), saved(weights, _use_new_zipfile_serialization=False), tensors(weights)]
    for number, data in enumerate(mutations(seeds, count, random.Random(7))):
        yield f"damaged_{number}.pt", data[: len(data) // (1 + number % 2)]


def prepare(before: str, folder: str) -> None:
    """Prepare a process that loads files: run code in it, and let it use at most 1 GB more."""
    warnings.simplefilter("ignore")
    exec(before, {})
    os.chdir(folder)
    network()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))


def attempt(path: Path) -> tuple[str, float, float]:
    """Load a file; return the outcome, the seconds of processor time, and the megabytes that it took."""
    net = network()
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 10, resource.RLIM_INFINITY))
    with contextlib.suppress(OSError):  # the peak of the memory starts at its current value
        Path("/proc/self/clear_refs").write_text("5")
    before, clock = megabytes(os.getpid()), time.process_time()
    try:
        checkpoints.load(net, path)
        outcome = "loaded"
    except checkpoints.BadCheckpoint as error:
        outcome = str(error)
    except BaseException as error:
        outcome = f"!{error!r}"
    return outcome, time.process_time() - clock, megabytes(os.getpid(), "VmHWM") - before


def load(every: int = 1, before: str = "", first: int | None = None) -> tuple[Row, list[str]]:
    """Load files in another process, in which `before` runs first; return a line of the table and the failures."""
    failures: list[str] = []
    count, most_seconds, most_memory = 0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as place:
        start = functools.partial(ProcessPoolExecutor, 1, get_context("spawn"), prepare, (before, place))
        pool, marker = start(), Path(place) / MARKER
        for name, content in itertools.islice(files(), 0, first, every):
            path = Path(place) / name
            path.write_bytes(content() if callable(content) else content)
            try:
                outcome, seconds, memory = pool.submit(attempt, path).result()
            except process.BrokenProcessPool:
                outcome, seconds, memory, pool = "!the process ended", 0.0, 0.0, start()
            path.unlink()
            if marker.exists():
                failures.append(f"checkpoint {name}: its code was run")
                marker.unlink()
            count, most_seconds, most_memory = count + 1, max(seconds, most_seconds), max(memory, most_memory)
            wrong = outcome.startswith("!") or (name.startswith("good") and outcome != "loaded")
            if wrong or seconds > SECONDS or memory > MEGABYTES:
                failures.append(f"checkpoint {name}: {seconds:.1f} s, {memory:.0f} MB: {outcome[:150]}")
        pool.shutdown()
    measured = f"{count:5} files, {most_seconds:.1f} s, {most_memory:.0f} MB"
    limit = f"no code is run, {SECONDS:g} s, {MEGABYTES:.0f} MB each"
    return Row("checkpoints", measured, limit, not failures), failures
