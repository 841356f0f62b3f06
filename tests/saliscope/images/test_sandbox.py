"""What a decoder that an image has taken over can do: return wrong pixels of its own image, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images.decoder import pool, protocol, sandbox
from tests.support.hijacked_decoder import ORDINARY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have only limits")
ROOT = Path(__file__).parents[3]
IMAGE = (ROOT / "assets" / "examples" / "coffee.jpg").read_bytes()
REFUSED = re.compile(r"refused: \w+Error( \d+)?").fullmatch
IS_ROOT = getattr(os, "geteuid", lambda: 1)() == 0


@contextlib.contextmanager
def hijacked(*using: str) -> Iterator[pool.Pool]:
    one = pool.Pool(1, 25.0, ("tests.support.hijacked_decoder", *using))
    one.prepare()
    yield one
    one.close()


@pytest.fixture(scope="module")
def decoder() -> Iterator[pool.Pool]:
    """A decoder with all mechanisms of this system, started by a page with a secret and an open pipe."""
    read, write = os.pipe()
    os.set_inheritable(read, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", "secret")
        with hijacked() as one:
            yield one
    os.close(read)
    os.close(write)


def assert_decodes(one: pool.Pool, about: object = "") -> None:
    """Assert that the next file gets its own answer."""
    assert one.call(IMAGE, task="image")[0] == {"size": [600, 400]}, about


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not done() and time.monotonic() < until:
        time.sleep(0.02)
    assert done()


def attempt(one: pool.Pool, name: str, argument: str = "") -> str:
    """Return what a decoder got, or the error."""
    try:
        return str(one.call(b"", task="attempt", name=name, argument=argument)[0]["done"])
    except Refused as error:
        return f"refused: {error}"


@dataclass(frozen=True)
class Victim:
    """Files, sockets and a process that must not be reached."""

    file: Path
    tcp: str
    udp: str
    abstract: str
    process: str

    def attempts(self, decoder: int) -> Iterator[tuple[str, str]]:
        """Yield the names and arguments of all attempts."""
        file, folder = str(self.file), str(self.file.parent)
        for name in ("read", "stat", "delete", "rename", "permissions", "truncate"):
            yield name, file
        for path in ("/etc/passwd", "/etc/hostname", "/dev/zero", "/proc/self/environ", "/proc/self/mem"):
            yield "read", path
        for process, kind in itertools.product((self.process, str(decoder), str(os.getpid())), ("environ", "mem")):
            yield "read", f"/proc/{process}/{kind}"
        yield from (("list", path) for path in ("/", "/proc", "/tmp", folder))
        yield from ((name, f"{folder}/new") for name in ("create", "folder", "link"))
        yield from [("tcp", self.tcp), ("udp", self.udp), ("unix", f"{folder}/socket"), ("abstract", self.abstract)]
        yield from [("exec", "/bin/sh"), ("exec", sys.executable)]
        for process in (self.process, str(decoder), str(os.getpid())):
            yield from ((name, process) for name in ("signal", "ptrace", "memory", "limits of", "priority"))
        yield from ((name, "") for name in ("pair", "fork", "thread", "limits", "root", "session", "executable memory"))
        yield "reserve", str(limits.DECODE_MEMORY)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    """Files, sockets and a process of this user, or as root, of an ordinary user."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "file"
    file.write_text("secret")
    process = subprocess.Popen(["sleep", "600"], user=ORDINARY if IS_ROOT else None)
    name = f"saliscope-{os.getpid()}-{process.pid}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(folder / "socket"))
        abstract.bind(f"\0{name}")
        unix.listen()
        abstract.listen()
        for path in (tmp_path.parent, tmp_path, folder, file, folder / "socket"):
            path.chmod(0o777)
            if IS_ROOT and path.is_relative_to(folder):
                os.chown(path, ORDINARY, ORDINARY)
        yield Victim(file, str(tcp.getsockname()[1]), str(udp.getsockname()[1]), name, str(process.pid))
        assert process.poll() is None and file.read_text() == "secret", "nothing was ended or changed"
        assert sorted(path.name for path in folder.iterdir()) == ["file", "socket"]
    process.kill()
    process.wait()


WITHOUT_SECCOMP = {"stat", "session", "executable memory", "priority", "permissions", "limits of"}
"""What limits and Landlock do not refuse: the owner may change permissions of files, and limits of the page."""


@pytest.mark.parametrize("using", ["", "ordinary", "seccomp", "landlock limits ordinary"])
def test_a_decoder_reaches_nothing(using: str, victim: Victim, decoder: pool.Pool) -> None:
    """With all mechanisms; and with seccomp, or without it, where the system does not have the others."""
    mechanisms = sorted({*using.split()} - {"ordinary"})
    active = decoder.mechanisms or []
    if {*mechanisms} - {*active} or (not using and sandbox.SECCOMP not in active):
        pytest.skip(f"this system only has {', '.join(active)}")
    if using == "ordinary" and not IS_ROOT:
        pytest.skip("the first case is an ordinary user already")
    arguments = [each for each in using.split() if each != "ordinary" or IS_ROOT]
    with hijacked(*arguments) if using else contextlib.nullcontext(decoder) as one:
        assert_decodes(one)
        assert not mechanisms or one.mechanisms == mechanisms
        tried, before = list(victim.attempts(one.processes()[0])), one.restarts
        if sandbox.SECCOMP in (one.mechanisms or []):  # others would wait for ever in one of them
            tried.append(("system calls", ""))
        if "limits" not in (one.mechanisms or []):
            tried.remove(("reserve", str(limits.DECODE_MEMORY)))
        found = {each: answer for each in tried if not REFUSED(answer := attempt(one, *each))}
        assert one.restarts == before
    assert {name for name, _ in found} <= (WITHOUT_SECCOMP if "landlock" in using else set()), found


def test_limits_alone_give_no_files_and_no_sockets(victim: Victim) -> None:
    """Files can be deleted and programs can start, but neither can open anything."""
    refused = {"read", "list", "create", "tcp", "udp", "unix", "abstract", "pair", "fork", "thread", "limits"}
    refused.add("reserve")
    with hijacked("limits", *["ordinary"] * IS_ROOT) as one:
        assert one.mechanisms == ["limits"]
        for name, argument in victim.attempts(one.processes()[0]):
            if name in refused:
                assert REFUSED(attempt(one, name, argument)), (name, argument)
        assert one.restarts == 0


@pytest.mark.skipif(not IS_ROOT, reason="only root changes the user")
def test_root_becomes_nobody(victim: Victim) -> None:
    with hijacked("user", "limits") as one:
        assert json.loads(attempt(one, "user")) == [sandbox.NOBODY, sandbox.NOBODY, []]
        processes = victim.process, str(os.getpid())
        for name, process in itertools.product(("signal", "ptrace", "memory", "limits of"), processes):
            assert attempt(one, name, process).startswith("refused"), name
        assert attempt(one, "root").startswith("refused")


def test_a_decoder_has_two_pipes_and_no_environment(decoder: pool.Pool) -> None:
    assert sorted(json.loads(attempt(decoder, "descriptors")).values()) == ["device"] * 3 + ["pipe"] * 2
    assert json.loads(attempt(decoder, "environment")) == {}
    assert b"secret" not in Path(f"/proc/{decoder.processes()[0]}/environ").read_bytes()


def test_a_file_finds_nothing_of_earlier_files(decoder: pool.Pool) -> None:
    """Except on systems without forks, where one process decodes many files."""
    before = decoder.restarts
    assert [attempt(decoder, "state", text) for text in "ab"] == ['["a"]', '["b"]'] and decoder.restarts == before
    with hijacked("limits", "together") as one:
        assert [attempt(one, "state", text) for text in "ab"] == ['["a"]', '["a", "b"]']
        assert_decodes(one)
        assert REFUSED(attempt(one, "read", "/etc/passwd")) and one.restarts == 0


def message(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    return protocol.LENGTHS.pack(len(header), len(body) if length is None else length) + header + body


SIZE = b'{"size": [1, 1]}'
FORGED = {
    "two answers": message(SIZE, b"abc") * 2,
    "one byte more": message(SIZE, b"abc") + b"x",
    "200 MB": message(b'{"size": [9000, 9000]}', length=200_000_000),
    "a refusal with bytes": message(b'{"refused": "no"}', b"abc"),
    "a long header": message(b"x" * 70_000),
    "no bytes": message(SIZE, length=3),
    "a pickle": b"\x80\x04\x95",
}


def test_a_forged_answer_or_none_ends_the_decoder_only(decoder: pool.Pool) -> None:
    for name, forged in FORGED.items():
        decoder.seconds = 25.0
        assert_decodes(decoder, name)
        before, decoder.seconds = decoder.restarts, 0.4  # of an answer that is not complete
        with pytest.raises(Refused, match="could not be decoded|takes too long"):
            decoder.call(forged, task="image", forged=True)
        assert decoder.restarts == before + 1, name
    assert "takes too long" in attempt(decoder, "spin")
    decoder.seconds = 25.0
    (process,) = [assert_decodes(decoder), decoder.processes()][1]
    children = Path(f"/proc/{process}/task/{process}/children")
    wait_until(lambda: len(children.read_text().split()) == 1)
    (child,) = children.read_text().split()
    os.kill(process, signal.SIGKILL)  # while it is idle
    wait_until(lambda: not Path(f"/proc/{child}").exists() and "State:\tZ" in status(process))
    assert_decodes(decoder, "killed")


def status(process: int) -> str:
    return Path(f"/proc/{process}/status").read_text()


def test_a_decoder_that_does_not_end_after_its_answer_is_ended(decoder: pool.Pool) -> None:
    assert_decodes(decoder)
    (process,), before, decoder.seconds = decoder.processes(), decoder.restarts, 1.0
    assert "takes too long" in attempt(decoder, "linger")
    decoder.seconds = 25.0
    assert_decodes(decoder)
    assert decoder.restarts == before + 1 and process not in decoder.processes()


def test_a_process_is_not_ended_by_the_time_limit_of_an_earlier_file(decoder: pool.Pool) -> None:
    assert_decodes(decoder)
    before, decoder.seconds = (decoder.processes(), decoder.restarts), 1.0
    assert_decodes(decoder)
    time.sleep(1.2)
    decoder.seconds = 25.0
    assert_decodes(decoder)
    assert (decoder.processes(), decoder.restarts) == before


def test_a_decoder_ends_with_the_page() -> None:
    """Also if the page is killed while a file that has taken over its decoder does not end."""
    code = """
import os, signal, threading, time
from saliscope.images.decoder import pool
one = pool.Pool(1, module=("tests.support.hijacked_decoder",))
one.prepare()
print(*one.processes(), flush=True)
threading.Thread(target=lambda: one.call(b"", task="attempt", name="linger", argument="")).start()
time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    process = Path(f"/proc/{int(done.stdout)}")
    wait_until(lambda: not process.exists())


def test_a_text_of_a_decoder_can_be_shown(decoder: pool.Pool) -> None:
    for text in ("x" * 10_000, "\ud800", 5, ["a"]):
        with pytest.raises(Refused) as caught:
            decoder.call(message(json.dumps({"refused": text}).encode()), task="image", forged=True)
        assert len(str(caught.value).encode()) <= pool.LONGEST_TEXT, text


NUMBERS = {
    "x86_64": {"read": 0, "mmap": 9, "mprotect": 10, "exit_group": 231, "openat": 257, "socket": 41, "execve": 59,
               "kill": 62, "ptrace": 101, "clone": 56, "prctl": 157, "prlimit64": 302},
    "aarch64": {"read": 63, "mmap": 222, "mprotect": 226, "exit_group": 94, "openat": 56, "socket": 198, "execve": 221,
                "kill": 129, "ptrace": 117, "clone": 220, "prctl": 167, "prlimit64": 261},
}  # fmt: skip
"""The numbers of some system calls; the first four are allowed."""


@pytest.mark.parametrize(("machine", "audit"), [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
def test_the_filter_exists_for_two_processors(machine: str, audit: int) -> None:
    """The filter as the kernel runs it: what is allowed, refused, and ended."""
    program, numbers = sandbox.filter_of(machine), NUMBERS[machine]
    assert program is not None and sandbox.filter_of("riscv64") is None
    for name, number in numbers.items():
        allowed = name in ("read", "mmap", "mprotect", "exit_group")
        assert run_filter(program, audit, number, 3) == ("allow" if allowed else "refuse"), name
        assert run_filter(program, audit ^ 1, number, 3) == "kill", "another table of system calls"
    for name in ("mmap", "mprotect"):
        assert run_filter(program, audit, numbers[name], 7) == "refuse"
    assert run_filter(program, audit, 0x40000000 + numbers["read"], 3) == "refuse"


def run_filter(program: bytes, audit: int, number: int, third: int) -> str:
    """Interpret a filter for one call."""
    data = struct.pack("<iIQ6Q", number, audit, 0, 0, 0, third, 0, 0, 0)
    at, value = 0, 0
    while True:
        code, yes, no, k = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
        elif code in (0x15, 0x45):
            at += yes if (value == k if code == 0x15 else value & k) else no
        else:
            return {0x7FFF0000: "allow", 0x00050001: "refuse", 0x80000000: "kill"}[k]


def test_the_page_hides_its_memory() -> None:
    """From other processes of its user, as a decoder without the other mechanisms would be."""
    code = f"""
import ctypes, os, subprocess
from saliscope.images.decoder import sandbox
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid({ORDINARY}, {ORDINARY}, {ORDINARY})
    os.setresuid({ORDINARY}, {ORDINARY}, {ORDINARY})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after the start of a program
def read():
    return subprocess.run(["cat", f"/proc/{{os.getpid()}}/environ"], capture_output=True).returncode
assert read() == 0 and not sandbox.is_hidden()
assert sandbox.hide_memory() and sandbox.is_hidden()
assert read() != 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_missing_mechanisms_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert sandbox.missing(sandbox.MECHANISMS) == []
    assert sandbox.missing(["user", "limits"]) == ["landlock", "seccomp"]
    assert ("user" in sandbox.missing([])) == IS_ROOT
    monkeypatch.setattr(sandbox, "missing", lambda active: ["landlock"] if active else [])
    pool.stop()
    pool.start()
    wait_until(lambda: pool.mechanisms() is not None and bool(caplog.text))
    pool.stop()
    assert caplog.text.count("does not have: landlock") == 1
    assert set(pool.mechanisms() or []) <= {*sandbox.MECHANISMS}
