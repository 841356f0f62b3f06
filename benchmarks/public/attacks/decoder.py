"""Attacks of a decoder that an image has taken over: on the page, its files and its network."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.public.client import IMAGE, Result, Server, children, explain, upload
from saliscope import limits
from saliscope.images.decoder import pool, sandbox
from tests.saliscope.images.test_sandbox import REFUSED, Victim, attempt

LIMITS = {
    "Max address space": str(limits.DECODE_MEMORY),
    "Max cpu time": str(int(limits.DECODE_SECONDS) + 2),
    **dict.fromkeys(("Max file size", "Max open files", "Max processes", "Max core file size"), "0"),
}
"""Names in /proc/PID/limits, and what a decoder may have."""


def attacks(server: Server) -> Iterator[Result]:
    """Try to leave the sandbox of a decoder."""
    if sys.platform != "linux":  # the limits are all that other systems have
        return
    yield from decoders_of(server)
    with contextlib.closing(pool.Pool(1, module=("tests.support.hijacked_decoder",))) as one:
        one.prepare()
        yield Result("an image in the sandbox", one.call(IMAGE.read_bytes(), task="image")[0]["size"], [600, 400])
        file = Path(upload(server, b"secret", "secret.jpg"))
        file.chmod(0o666)
        file.parent.chmod(0o777)
        victim = Victim(file, str(server.address[1]), "53", "none", str(server.process.pid))
        for name, argument in (*victim.attempts(one.processes()[0]), ("system calls", "")):
            found = attempt(one, name, argument)
            yield Result(f"{name} {argument}".strip(), "refused" if REFUSED(found) else found, "refused")
        yield Result("the mechanisms", sandbox.missing(one.mechanisms or []), [])
        yield Result("the file of another visitor is kept", file.is_file() and file.read_bytes(), b"secret")
        yield Result("decoders that were ended", one.restarts, 0)


def decoders_of(server: Server) -> Iterator[Result]:
    """Look at the decoders of the page itself, from outside."""
    explain(server)
    found, until = _decoders(server.process.pid), time.monotonic() + 10.0  # on a busy machine
    while {str(*status["Seccomp"]) for status in found.values()} != {"2"} and time.monotonic() < until:
        time.sleep(0.2)  # a new one enters the sandbox before it reads a file
        found = _decoders(server.process.pid)
    for process, status in found.items():
        rights = [*status["NoNewPrivs"], *status["Seccomp"], int(status["CapEff"][0], 16), "0" in status["Uid"]]
        yield Result("no new privileges, a filter, no capabilities, not root", rights, ["1", "2", 0, False])
        lines = Path(f"/proc/{process}/limits").read_text(encoding="ascii").splitlines()
        own = {name: line[len(name) :].split()[0] for line in lines for name in LIMITS if line.startswith(name)}
        yield Result("the limits of the process", own, LIMITS)
        if os.geteuid() == 0:  # others cannot see the descriptors
            kinds = sorted(os.readlink(path).partition(":")[0] for path in Path(f"/proc/{process}/fd").iterdir())
            yield Result("descriptors", kinds, ["/dev/null"] * 3 + ["pipe"] * 2)
    yield Result("decoders of the page", len(found) > 0, True)


def _decoders(page: int) -> dict[int, dict[str, list[str]]]:
    """Return what the system says of the processes of files: the process that starts them has a child."""
    found = {}
    for process in children(page):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if pool.WORKER.encode() in command and not children(process):
                lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
                found[process] = {line.partition(":")[0]: line.split()[1:] for line in lines}
    return found
