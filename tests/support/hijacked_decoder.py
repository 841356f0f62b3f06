"""A decoder that an image has taken over: it tries what a request names, in the sandbox of the decoders of the page.

    python -m tests.support.hijacked_decoder landlock seccomp    as on a system with only these mechanisms
    python -m tests.support.hijacked_decoder ordinary            as on a page that does not run as root
    python -m tests.support.hijacked_decoder limits together     as on macOS: one process for many files

No request can reach it: only tests pass the name of this module to `pool.Pool`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from saliscope.images.decoder import protocol, sandbox, worker

LIBC = ctypes.CDLL(None, use_errno=True)
SYSCALL = LIBC.syscall
SYSCALL.restype = ctypes.c_long
ORDINARY = 54321
"""The user of a page that does not run as root."""
seen: list[str] = []
"""What earlier files left in the memory of this process."""


def _check(value: int) -> int:
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return value


def _connect(family: int, kind: int, address: Any) -> str:
    with socket.socket(family, kind) as connection:
        connection.settimeout(2)
        connection.connect(address)
        connection.send(b"x")
    return "connected"


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return f"{len(file.read(100))} bytes"


def _memory(process: str) -> str:
    """Read memory of another process without its file in /proc."""
    data, other = ctypes.create_string_buffer(8), ctypes.c_void_p(id(sys))
    own = (ctypes.c_void_p * 2)(ctypes.addressof(data), 8)
    remote = (ctypes.c_void_p * 2)(other.value, 8)
    return str(_check(LIBC.process_vm_readv(int(process), own, ctypes.c_ulong(1), remote, ctypes.c_ulong(1), 0)))


def _fork(_: str) -> str:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return str(os.waitpid(child, 0)[0])


def _thread(_: str) -> str:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return "ran"


def _raise_limits(_: str) -> str:
    for name in ("AS", "CPU", "NOFILE", "NPROC", "FSIZE"):
        number = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(number, (1 << 40, 1 << 40))
    return "raised"


def _descriptors(_: str) -> str:
    """Return the open descriptors; a pipe has no position."""
    kinds = {}
    for number in range(256):
        try:
            os.lseek(number, 0, os.SEEK_CUR)
            kinds[number] = "device"
        except OSError as error:
            if error.errno != errno.EBADF:
                kinds[number] = "pipe" if error.errno == errno.ESPIPE else "other"
    return json.dumps(kinds)


def _executable_memory(_: str) -> str:
    LIBC.mmap.restype = ctypes.c_void_p
    anonymous = ctypes.c_int(0x22)
    found = LIBC.mmap(None, ctypes.c_size_t(4096), 7, anonymous, -1, ctypes.c_long(0))
    if found in (None, ctypes.c_void_p(-1).value):
        _check(-1)
    return "mapped"


def _system_calls(_: str) -> str:
    """Return the numbers of the system calls that decoding does not need and that are not refused."""
    allowed = {"x86_64": (*range(16), 24, 25, 28, 35, 39, 60, 96, 98, 131, 186, 202, 219, 228, 229, 230, 231, 318)}
    numbers = [*range(16, 470), 0x40000000, 0x40000001, 0x40000000 + 59]  # the latter: the table of 32-bit pointers
    found = []
    for number in numbers:
        if number not in allowed[os.uname().machine]:
            ctypes.set_errno(0)
            result = SYSCALL(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
            if (result, ctypes.get_errno()) != (-1, errno.EPERM):
                found.append(number)
    if not found:
        raise PermissionError(errno.EPERM, "all are refused")
    return json.dumps(found)


def _state(text: str) -> str:
    seen.append(text)
    return json.dumps(seen)


def _linger(_: str) -> str:
    """Answer, but do not end."""
    os._exit = lambda code: time.sleep(60)  # type: ignore[assignment]
    return "answered"


ATTEMPTS: dict[str, Callable[[str], Any]] = {
    "read": _read,
    "list": lambda path: str(len(os.listdir(path))),
    "stat": lambda path: str(os.stat(path).st_size),
    "create": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)),
    "delete": os.unlink,
    "rename": lambda path: os.rename(path, path + "2"),
    "folder": os.mkdir,
    "link": lambda path: os.symlink("/etc/passwd", path),
    "permissions": lambda path: os.chmod(path, 0o777),
    "truncate": lambda path: os.truncate(path, 0),
    "tcp": lambda port: _connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(port))),
    "udp": lambda port: _connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", int(port))),
    "unix": lambda path: _connect(socket.AF_UNIX, socket.SOCK_STREAM, path),
    "abstract": lambda name: _connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + name),
    "pair": lambda _: str(socket.socketpair()),
    "exec": lambda path: os.execv(path, [path, "-c", "exit 0"]),
    "fork": _fork,
    "thread": _thread,
    "signal": lambda process: os.kill(int(process), 0),
    "ptrace": lambda process: str(_check(LIBC.ptrace(16, int(process), None, None))),
    "memory": _memory,
    "limits": _raise_limits,
    "limits of": lambda process: str(resource.prlimit(int(process), resource.RLIMIT_NOFILE, (9, 9))),
    "root": lambda _: os.setresuid(0, 0, 0),
    "session": lambda _: os.setsid(),
    "priority": lambda process: os.setpriority(os.PRIO_PROCESS, int(process), 19),
    "executable memory": _executable_memory,
    "system calls": _system_calls,
    "descriptors": _descriptors,
    "environment": lambda _: json.dumps(dict(os.environ)),
    "user": lambda _: json.dumps([os.getuid(), os.getgid(), os.getgroups()]),
    "state": _state,
    "spin": lambda _: sum(0 for _ in iter(int, 1)),
    "reserve": lambda size: str(len(bytearray(int(size)))),
    "linger": _linger,
}


def respond(header: dict[str, Any], data: bytes) -> worker.Answer:
    """Try what the request names, and answer what happened; a forged answer has the bytes of the request."""
    if header.get("forged"):
        os.write(max(map(int, json.loads(_descriptors("")))), data)  # the pipe of answers is the last one
        os._exit(0)
    if header["task"] != "attempt":
        return worker.respond(header, data)
    try:
        found = ATTEMPTS[header["name"]](header["argument"])
    except OSError as error:
        return {"refused": f"{type(error).__name__} {error.errno}"}, b""
    except (RuntimeError, MemoryError, ValueError) as error:
        return {"refused": type(error).__name__}, b""
    return {"done": str(found)}, b""


def main(using: list[str]) -> None:
    """Serve requests with all mechanisms, or with those that are named."""
    if "ordinary" in using:
        worker.prepare()  # this user cannot read the packages of root
        os.setgroups([])
        os.setresgid(ORDINARY, ORDINARY, ORDINARY)
        os.setresuid(ORDINARY, ORDINARY, ORDINARY)
        LIBC.prctl(4, 1, 0, 0, 0)  # as in a process that this user has started
    if "together" in using:
        worker.FORKS = False
    worker.main(respond, set(using) & set(sandbox.MECHANISMS) or sandbox.MECHANISMS)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, protocol.Broken):
        main(sys.argv[1:])
