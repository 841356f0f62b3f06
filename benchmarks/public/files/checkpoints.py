"""Hostile files of weights, loaded in a process that reports time and memory, and whether code was run."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import pickle
import pickletools
import random
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.public.table import Row

SECONDS, MEGABYTES = 1.0, 100.0
MARKER = "hostile-code-was-run"
LOADER = """
import resource, sys, time, json, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from saliscope.zoo import checkpoints
from benchmarks.public.files.checkpoints import network
from benchmarks.public.processes import megabytes, reset_peak
import os
network()
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
for line in sys.stdin:
    net = network()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 10, resource.RLIM_INFINITY))
    reset_peak(os.getpid())
    before, clock = megabytes(os.getpid()), time.process_time()
    try:
        checkpoints.load(net, Path(line.strip()))
        outcome = "loaded"
    except checkpoints.BadCheckpoint as error:
        outcome = str(error)
    except BaseException as error:
        outcome = f"!{error!r}"
    seconds = time.process_time() - clock
    print(json.dumps([outcome, seconds, megabytes(os.getpid(), "VmHWM") - before]), flush=True)
"""


def network() -> nn.Sequential:
    """Return the network whose weights are loaded."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4))


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *values: Any) -> None:
        self.call = function, values

    def __reduce__(self) -> Any:
        return self.call


Content = bytes | Callable[[], bytes]
"""A file's content, or a function that makes it if that takes a second."""


def files() -> Iterator[tuple[str, Content, bool]]:
    """Yield names, contents, and whether the weights may be loaded."""
    yield "good.pt", saved(network().state_dict()), True
    yield "good.safetensors", tensors(network().state_dict()), True
    for part in (code, archives, sizes, structures, values, programs, headers, damaged):
        yield from ((name, content, False) for name, content in part())


def saved(content: Any, **options: Any) -> bytes:
    """Return what torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def archive(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive as torch.save writes it, with other contents."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as target:
        for name, content in {"version": b"3\n", "byteorder": b"little", **parts}.items():
            target.writestr(f"archive/{name}", content)
    return file.getvalue()


def code() -> Iterator[tuple[str, bytes]]:
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
        "unlink": Call(Path.touch, Path(MARKER)),
    }
    for name, call in calls.items():
        for protocol in (0, 1, 2, 3, 4, 5):
            yield f"{name}{protocol}.pkl", pickle.dumps(call, protocol)
        yield f"{name}.pt", archive({"data.pkl": pickle.dumps({"a": call}, 2)})
        yield f"{name}_old.pt", saved({"a": call}, _use_new_zipfile_serialization=False)
        yield f"{name}.safetensors", pickle.dumps(call, 2)
    yield "module.pt", saved(network())
    yield "build.pt", archive({"data.pkl": b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00true\x85R."})
    yield "inst.pt", archive({"data.pkl": b"(S'touch " + MARKER.encode() + b"'\nios\nsystem\n."})


def archives() -> Iterator[tuple[str, Content]]:
    """Yield zip bombs and archives with wrong names."""
    zeros = bytes(200 * 2**20)
    yield "bomb_pickle.pt", lambda: archive({"data.pkl": zeros}, zipfile.ZIP_DEFLATED)
    table = pickletools.optimize(tensor_pickle("0", 100_000_000, (100_000_000,)))
    yield "bomb_data.pt", lambda: archive({"data.pkl": table, "data/0": zeros}, zipfile.ZIP_DEFLATED)
    yield "bomb_version.pt", lambda: archive({"data.pkl": b"\x80\x02}.", "version": zeros}, zipfile.ZIP_DEFLATED)
    yield "outside.pt", archive({"../../outside": b"x", "data.pkl": b"\x80\x02}."})
    entries = {f"data/{k}": b"" for k in range(60_000)}
    yield "many_entries.pt", lambda: archive(entries | {"data.pkl": b"\x80\x02}."})
    yield "no_pickle.pt", archive({})
    yield "docx.pt", archive({"word/document.xml": b"<x/>"})


Numbers = tuple[int, ...]


def tensor_pickle(key: str, numel: int, shape: Numbers, stride: Numbers = (1,), offset: int = 0) -> bytes:
    """Return the pickle of one tensor as torch.save writes it, with any numbers."""

    def number(value: int) -> bytes:
        size = max(1, (value.bit_length() + 8) // 8)
        return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def numbers(row: Numbers) -> bytes:
        return b"(" + b"".join(map(number, row)) + b"t"

    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(numel) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset) + numbers(shape) + numbers(stride)
    return b"\x80\x02}" + text("3.bias") + call + b"\x89" + hooks + b"tRs."


def sizes() -> Iterator[tuple[str, bytes]]:
    """Yield tensors with other sizes than their data, and objects that need memory."""
    data = {"data/0": bytes(16)}
    for name, numbers in {
        "stride_0": (4, (10**6, 10**6), (0, 0)),
        "stride_0_fits": (4, (8, 3, 3, 3), (0, 0, 0, 0)),
        "huge": (10**12, (10**12,), (1,)),
        "negative": (4, (-4,), (1,)),
        "negative_stride": (4, (4,), (-1,)),
        "overflow": (4, (2**62, 8), (1, 1)),
        "beyond": (4, (400,), (1,)),
        "many_axes": (4, (1,) * 500, (1,) * 500),
    }.items():
        yield f"{name}.pt", archive({"data.pkl": tensor_pickle("0", *numbers), **data})
    yield "offset.pt", archive({"data.pkl": tensor_pickle("0", 4, (1,), (1,), 2**40), **data})
    yield "other_key.pt", archive({"data.pkl": tensor_pickle("../../etc/passwd", 4, (4,)), **data})
    numbers = b"\x8a\x05" + (2 * 10**9).to_bytes(5, "little")
    for module, name in (("builtins", "bytearray"), ("torch", "Tensor"), ("torch", "FloatTensor")):
        content = b"\x80\x02c" + f"{module}\n{name}\n".encode() + numbers + b"\x85R."
        yield f"{name}.pt", archive({"data.pkl": content})
    fill = b"\x80\x02cbuiltins\nbytearray\n" + b"X" + struct.pack("<I", 1) + b"a" + b"X\x05\x00\x00\x00utf-8\x86R."
    yield "bytes.pt", archive({"data.pkl": fill})
    text = b"X" + struct.pack("<I", 30_000_000) + b"a" * 30_000_000
    yield "text.pt", archive({"data.pkl": b"\x80\x02}" + text + b"Ns."})
    yield "meta.pt", saved({"3.bias": torch.empty(10**12, device="meta")})
    yield "sparse.pt", saved({"3.bias": torch.eye(4).to_sparse()})
    sparse = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0), (10**15,))
    yield "sparse_huge.pt", saved({"3.bias": sparse})


def structures() -> Iterator[tuple[str, bytes]]:
    """Yield nested and repeated mappings."""
    inner: Any = {"a": torch.zeros(1)}
    for _ in range(4):
        inner = {f"k{number}": inner for number in range(200)}
    yield "repeated.pt", saved(inner)
    loop: dict[str, Any] = {"a": torch.zeros(1)}
    loop["loop"] = loop
    yield "loop.pt", saved(loop)
    yield "many_mappings.pt", saved({f"m{number}": {"a": torch.zeros(1)} for number in range(2000)})
    yield "many_tensors.pt", saved({f"t{number}": torch.zeros(1) for number in range(3000)})
    yield "long_prefix.pt", saved({"a." * 100_000 + "weight": torch.zeros(1)})
    yield "deep_list.pt", archive({"data.pkl": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."})
    yield "deep_tuple.pt", archive({"data.pkl": b"\x80\x02)" + b"\x85" * 200_000 + b"."})
    yield "odd_names.pt", saved({"\n\x1b[31m<script>": torch.zeros(1), "": torch.zeros(1), "." * 500: torch.zeros(1)})
    yield "memo.pt", archive({"data.pkl": b"\x80\x02}q\x00" + b"r\xff\xff\xff\x7f" + b"j\xff\xff\xff\x7f."})


def values() -> Iterator[tuple[str, bytes]]:
    """Yield weights with wrong shapes, types and values."""
    good = network().state_dict()
    for name, changed in {
        "nan": {"3.bias": torch.full((4,), float("nan"))},
        "infinite": {"0.weight": torch.full((8, 3, 3, 3), float("inf"))},
        "shape": {"3.bias": torch.zeros(5)},
        "no_axes": {"3.bias": torch.tensor(1.0)},
        "complex": {"3.bias": torch.zeros(4, dtype=torch.complex64)},
        "integers": {"3.bias": torch.zeros(4, dtype=torch.int64)},
        "overflow": {"3.bias": torch.full((4,), 1e300, dtype=torch.float64)},
        "not_a_tensor": {"3.bias": [1.0, 2.0]},
        "quantized": {"3.bias": torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)},
        "parameters_of_another": {"4.weight": torch.zeros(3)},
    }.items():
        yield f"value_{name}.pt", saved(OrderedDict({**good, **changed}))
    yield "optimizer.pt", saved(torch.optim.SGD(network().parameters(), 0.1).state_dict())
    yield "number.pt", saved(5)
    yield "text_only.pt", saved("hello")


def programs() -> Iterator[tuple[str, bytes]]:
    """Yield saved programs instead of weights."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(network().eval(), torch.zeros(1, 3, 3, 3)), file)
    yield "script.pt", file.getvalue()
    file = io.BytesIO()
    torch.export.save(torch.export.export(network().eval(), (torch.zeros(1, 3, 3, 3),)), file)
    yield "exported.pt2", file.getvalue()
    yield "onnx.onnx", b"\x08\x08\x12\x07pytorch" + bytes(100)
    yield "gguf.gguf", b"GGUF\x03\x00\x00\x00" + bytes(100)
    yield "hdf5.h5", b"\x89HDF\r\n\x1a\n" + bytes(100)


def tensors(weights: dict[str, torch.Tensor]) -> bytes:
    """Return a safetensors file."""
    header, body = {}, b""
    names = {torch.float32: "F32", torch.int64: "I64"}
    for name, value in weights.items():
        data = value.contiguous().numpy().tobytes()
        at = [len(body), len(body) + len(data)]
        header[name] = {"dtype": names[value.dtype], "shape": list(value.shape), "data_offsets": at}
        body += data
    return with_header(json.dumps(header).encode(), body)


def with_header(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file with any header."""
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def _many_tensors(count: int) -> bytes:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return with_header(json.dumps({f"t{k}": entry for k in range(count)}).encode())


def headers() -> Iterator[tuple[str, Content]]:
    """Yield safetensors files with lying headers."""
    entry = '{"a":{"dtype":"%s","shape":%s,"data_offsets":%s}}'
    texts = {
        "beyond": entry % ("F32", "[4]", "[0, 16]"),
        "huge": entry % ("F32", "[1000000000000]", "[0, 4000000000000]"),
        "negative": entry % ("F32", "[-4]", "[0, -16]"),
        "overflow": entry % ("F32", "[4611686018427387904, 4]", "[0, 0]"),
        "backwards": entry % ("F32", "[4]", "[16, 0]"),
        "floats": entry % ("F32", "[4.0]", "[0, 16]"),
        "text": entry % ("F32", '["4"]', "[0, 16]"),
        "long_number": entry % ("F32", "[" + "9" * 4000 + "]", "[0, 16]"),
        "dtype": entry % ("F7", "[4]", "[0, 16]"),
        "nan": '{"a": NaN}',
        "list": "[1, 2]",
        "nested": '{"a":' * 5000 + "1" + "}" * 5000,
        "brackets": "{" + "[" * 100_000,
        "many_axes": entry % ("F32", "[" + ",".join(["1"] * 5000) + "]", "[0, 4]"),
    }
    for name, text in texts.items():
        yield f"header_{name}.safetensors", with_header(text.encode(), bytes(8))
    for count in (3_000, 30_000):
        text = entry % ("F32", "[" + ",".join([str(2**60)] * count) + "]", "[0, 0]")
        yield f"header_{count}_long_axes.safetensors", with_header(text.encode())
    yield "header_long_digits.safetensors", with_header((entry % ("F32", f"[{'9' * 1_900_000}]", "[0, 16]")).encode())
    for part in (b"[]", b"{}", b'""', b"1.5"):
        lists = b'{"a":[' + b",".join([part] * (1_900_000 // (len(part) + 1))) + b"]}"
        yield f"header_of_{part.decode().strip()[:1] or 'x'}.safetensors".replace('"', "text"), with_header(lists)
    yield "header_400000.safetensors", functools.partial(_many_tensors, 400_000)
    yield "header_10000.safetensors", functools.partial(_many_tensors, 10_000)
    many = {f"t{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(20_000)}
    yield "header_many.safetensors", with_header(json.dumps(many).encode())
    overlap = {f"t{k}": {"dtype": "F32", "shape": [500_000], "data_offsets": [0, 2_000_000]} for k in range(1000)}
    yield "header_overlap.safetensors", with_header(json.dumps(overlap).encode(), bytes(2_000_000))
    for length in (0, 1, 2**31, 2**63, 2**64 - 1, 100_000_000):
        yield f"header_length_{length}.safetensors", with_header(b"{}", bytes(40), length)
    yield "header_spaces.safetensors", with_header(b"{" + b" " * 30_000_000 + b"}")


def damaged(count: int = 60) -> Iterator[tuple[str, bytes]]:
    """Yield good files with changed bytes."""
    rng = random.Random(7)
    seeds = [saved(network().state_dict()), saved(network().state_dict(), _use_new_zipfile_serialization=False)]
    seeds.append(tensors(network().state_dict()))
    for number in range(count):
        data = bytearray(seeds[number % 3])
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(min(len(data), 1500))] = rng.randrange(256)
        yield f"damaged_{number}.pt", bytes(data[: rng.choice([len(data), len(data) // 2])])


def load(every: int = 1, before: str = "") -> tuple[Row, list[str]]:
    """Load the files in another process, in which `before` runs first; return a line of the table and the failures."""
    failures: list[str] = []
    count = most_seconds = most_memory = 0.0
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-c", before + LOADER]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        start: Callable[[], Any] = lambda: subprocess.Popen(  # noqa: E731
            command, cwd=place, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        process = start()
        for name, content, good in itertools.islice(files(), 0, None, every):
            path = Path(place) / name
            path.write_bytes(content() if callable(content) else content)
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            line = process.stdout.readline()
            count += 1
            path.unlink()
            if (Path(place) / MARKER).exists():
                failures.append(f"checkpoint {name}: its code was run")
                (Path(place) / MARKER).unlink()
            if not line:
                failures.append(f"checkpoint {name}: the process ended with status {process.wait()}")
                process = start()
                continue
            outcome, seconds, memory = json.loads(line)
            memory = max(0.0, memory)
            most_seconds, most_memory = max(seconds, most_seconds), max(memory, most_memory)
            if outcome.startswith("!") or (good and outcome != "loaded"):
                failures.append(f"checkpoint {name}: {outcome}")
            if seconds > SECONDS or memory > MEGABYTES:
                failures.append(f"checkpoint {name}: {seconds:.1f} s, {memory:.0f} MB: {outcome[:150]}")
        process.stdin.close()
        process.wait()
    measured = f"{count:5.0f} files, {most_seconds:.1f} s, {most_memory:.0f} MB"
    limit = f"no code is run, {SECONDS:g} s, {MEGABYTES:.0f} MB each"
    return Row("checkpoints", measured, limit, not failures), failures
