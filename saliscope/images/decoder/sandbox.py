"""Take away from a decoder process what decoding does not need: files, programs, the network, and other processes.

An image that takes over a decoder can then only return wrong pixels for itself. The mechanisms are independent. `enter`
uses those that the system has, and returns their names:

- user: where the page runs as root, the user `nobody` without groups and capabilities
- limits: no new descriptors, so no files and sockets; no new processes (except for root); no file grows; no core dumps;
  limited memory and processor time, which cannot be raised again
- landlock (Linux 5.13): no file can be read, written, created, deleted or run; since 6.7 no TCP, since 6.12 no signals
  to other processes
- seccomp (Linux on x86-64 and ARM64): only the system calls of a running computation. All others fail with EPERM

Other systems have the limits only, and Windows has none of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import importlib
import os
import platform
import signal
import struct
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

resource: Any = importlib.import_module("resource") if os.name == "posix" else None

USER, LIMITS, LANDLOCK, SECCOMP = MECHANISMS = ("user", "limits", "landlock", "seccomp")
NOBODY = 65534
_SETUID, _KILL = 1 << 7, 1 << 5
"""Capabilities to change the user of a process, and to end processes of other users, which the page must keep."""
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 3, 4, 22, 38

# include/uapi/linux/landlock.h: actions on files since version 1, 2, 3 and 5
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP = 0b11  # bind and connect, since version 4
_SCOPES = 0b11  # abstract unix sockets and signals, since version 6
_CREATE_RULESET, _RESTRICT_SELF = 444, 446

# include/uapi/linux/audit.h, and the numbers of the calls on x86-64 and ARM64
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "futex": (202, 98),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "getrandom": (318, 278),
}
_NOT_EXECUTABLE = {"mmap": (9, 222), "mprotect": (10, 226)}
"""Calls that may not make memory executable: all libraries are loaded before."""

# include/uapi/linux/bpf_common.h and seccomp.h
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _MACHINE, _THIRD_ARGUMENT = 0, 4, 32
_KILL_PROCESS, _REFUSE, _ALLOW = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000
_PROT_EXEC = 4


def enter(memory: int, seconds: int, parent: int | None = None, using: Collection[str] = MECHANISMS) -> list[str]:
    """Give up everything but the open descriptors of this process, for the rest of its life.

    `memory` is in bytes, `seconds` is processor time. With `parent`, this process ends with its parent, which has this
    number. `using` are the mechanisms that may be used, as if the system had no others.

    Returns  the names of the mechanisms that are active
    """
    if sys.platform != "linux":
        return [LIMITS] if LIMITS in using and _limit(memory, seconds) else []
    active = [USER] if USER in using and _change_user() else []
    _libc.capset(struct.pack("<Ii", 0x20080522, 0), bytes(24))  # no capabilities
    _prctl(_PR_SET_DUMPABLE, 0)
    if parent is not None:  # after the change of the user, which resets it
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    others = {LANDLOCK: _landlock, LIMITS: lambda: _limit(memory, seconds), SECCOMP: _seccomp}
    return active + [name for name, forbid in others.items() if name in using and forbid()]


def missing(active: list[str]) -> list[str]:
    """Return the names of the mechanisms that this process could have on another system."""
    root = getattr(os, "geteuid", lambda: 1)() == 0
    return [name for name in ([USER] * root + [LANDLOCK, SECCOMP, LIMITS]) if name not in active]


def hide_memory() -> bool:
    """Hide the memory and the environment of this process from other processes of its user, and write no core dumps.

    Returns  whether the system supports it
    """
    return sys.platform == "linux" and _prctl(_PR_SET_DUMPABLE, 0)


def is_hidden() -> bool:
    """Return whether `hide_memory` has an effect in this process."""
    return sys.platform == "linux" and _prctl(_PR_GET_DUMPABLE, 0)


if sys.platform == "linux":
    _libc = ctypes.CDLL(None)
    _libc.prctl.argtypes = ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong
    _libc.syscall.argtypes = ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long
    _libc.syscall.restype = ctypes.c_long
    _libc.capset.argtypes = ctypes.c_char_p, ctypes.c_char_p


def _prctl(option: int, value: int, pointer: Any = None) -> bool:
    return bool(_libc.prctl(option, value, pointer, 0, 0) == 0)


def _change_user() -> bool:
    """Change root to `nobody`, if the page can still end this process then."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
        if os.geteuid() != 0 or capabilities & (_SETUID | _KILL) != _SETUID | _KILL:
            return False
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except (OSError, ValueError, IndexError):  # a system without these files, or a container without this user
        return False
    return True


def _landlock() -> bool:
    """Forbid everything that Landlock can forbid."""
    version = _libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    files = next(mask for since, mask in reversed(_FILES.items()) if version >= since)
    rules = struct.pack("<QQQ", files, _TCP, _SCOPES)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    descriptor = _libc.syscall(_CREATE_RULESET, rules, len(rules), 0)
    if descriptor < 0:
        return False
    try:
        return bool(_libc.syscall(_RESTRICT_SELF, descriptor, 0, 0) == 0)
    finally:
        os.close(descriptor)


def _limit(memory: int, seconds: int) -> bool:
    if resource is None:
        return False
    limits = {"AS": memory, "FSIZE": 0, "CORE": 0, "NPROC": 0, "NOFILE": 0, "CPU": seconds}
    for name, value in limits.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):  # macOS lacks or refuses some limits
            number = getattr(resource, f"RLIMIT_{name}")
            highest = resource.getrlimit(number)[1]
            least = value if highest == resource.RLIM_INFINITY else min(value, highest)
            # The soft limit of processor time is a signal that tells what happened, the hard one ends the process.
            resource.setrlimit(number, (least, least + (name == "CPU" and least != highest)))
    return True


def _seccomp() -> bool:
    """Allow only the system calls of a computation that reads and writes its open descriptors."""
    program = filter_of(platform.machine())
    if program is None or struct.calcsize("P") != 8:
        return False
    address = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value
    return _prctl(_PR_SET_SECCOMP, 2, struct.pack("HP", len(program) // 8, address))


@functools.cache
def filter_of(machine: str) -> bytes | None:
    """Return the instructions of the filter for a processor, or None if its system calls have other numbers."""
    if machine not in _MACHINES:
        return None
    audit, column = _MACHINES[machine]
    code = [(_LOAD, 0, 0, _MACHINE), (_IF_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL_PROCESS), (_LOAD, 0, 0, _NUMBER)]
    for numbers in _ALLOWED.values():
        code += [(_IF_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    for numbers in _NOT_EXECUTABLE.values():
        code += [(_IF_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _THIRD_ARGUMENT)]
        code += [(_IF_ANY_BIT, 0, 1, _PROT_EXEC), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    code.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
