"""Plant faults one by one, and run a short form of the check that must notice each of them.

`python -m benchmarks.public.faults` plants all, and `python -m benchmarks.public.faults NAME ...` some.

`--control` plants nothing: then no check may find anything.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.public import hostile, load, processes, soak
from benchmarks.public.attacks import decoder, disk, hosts, http, pages, policy, users, visitors
from benchmarks.public.attacks.browser import browsers
from benchmarks.public.attacks.http import Result
from benchmarks.public.files import checkpoints
from benchmarks.public.files import images as hostile_images
from benchmarks.public.files.case import REFUSED, Case
from benchmarks.public.server import FAULTS as RUN
from benchmarks.public.server import Server, running
from benchmarks.public.table import Row, show
from saliscope import limits
from saliscope.images.decoder import pool

MINUTES = 10.0
"""For one fault."""


@dataclass(frozen=True)
class Fault:
    """The command that must notice a fault, and its check in a short form, which returns what it finds wrong."""

    command: str
    check: Callable[[str], list[str]]


def attack(check: Callable[[Server], Iterable[Result]], **smaller: float) -> Callable[[str], list[str]]:
    """Return a check by a part of `make attack`; `smaller` are limits here and in the page."""

    def run(fault: str) -> list[str]:
        given = {name: getattr(limits, name) for name in smaller}
        changes = [f"{name}={value}" for name, value in smaller.items()]
        try:
            for name, value in smaller.items():
                setattr(limits, name, value)
            with running(fault="+".join([*changes, *filter(None, [fault])])) as server:
                found = list(check(server))
        finally:
            for name, value in given.items():
                setattr(limits, name, value)
        return [f"{each.name}: {each.got}" for each in found if each.got != each.expected]

    return run


def _links(server: Server) -> Iterator[Result]:
    with browsers() as visit:
        yield from pages.links(visit(server))


def decode(*cases: Case) -> Callable[[str], list[str]]:
    """Return a check by some files of `make hostile`."""

    def run(fault: str) -> list[str]:
        module = (RUN, fault, pool.WORKER) if fault else (pool.WORKER,)
        return [each for found in hostile.decode(cases, module=module).values() for each in found.failures]

    return run


def bombs(names: tuple[str, ...]) -> list[Case]:
    """Return the bombs of `make hostile` with these names."""
    return [case for case in hostile_images.cases() if case.name in names]


def decoder_limits(fault: str) -> list[str]:
    """Check by the limits of a decoder."""
    return _failed([hostile.limits_of_decoder((RUN, fault) if fault else ())])


def weights(fault: str) -> list[str]:
    """Check by some checkpoints of `make hostile`."""
    before = f"from benchmarks.public.faults import run; run.plant({fault!r})\n" if fault else ""
    return checkpoints.load(23, before)[1]


def many_users(fault: str) -> list[str]:
    """Check by a short `make load`."""
    late, load.LATE = load.LATE, 45.0
    try:
        with running(fault=fault) as server:
            return _failed(load.load(server, 8, 6, 3.0)[0])
    finally:
        load.LATE = late


def rounds(questions: int, count: int) -> Callable[[str], list[str]]:
    """Return a check by a short `make soak`."""

    def run(fault: str) -> list[str]:
        with running(fault="+".join([soak.METERED, *filter(None, [fault])])) as server:
            return _failed(soak.soak(server, count, questions, 4, MINUTES)[0])

    return run


def _failed(rows: Iterable[Row]) -> list[str]:
    return [f"{row.name}: {row.measured}" for row in rows if not row.passed]


SHORT: dict[str, Any] = {"BODY_PAUSE": 2.0, "BODY_WAIT": 2.0, "DISCARD_SECONDS": 2.0}
FAULTS: dict[str, Fault] = {
    "files outside the folders": Fault("attack paths", attack(http.paths)),
    "links are fetched": Fault("attack links", attack(http.links)),
    "bodies twice as long": Fault("attack bodies", attack(http.bodies)),
    "JSON values not counted": Fault("attack counts", attack(http.counts)),
    "JSON delimiters not counted": Fault("attack counts", attack(http.counts)),
    "JSON depth not counted": Fault("attack counts", attack(http.counts)),
    "headers not checked": Fault("attack headers", attack(http.headers)),
    "no content security policy": Fault("attack policy", attack(policy.policy)),
    "files without security headers": Fault("attack policy", attack(policy.policy)),
    "unknown endpoints": Fault("attack endpoints", attack(http.endpoints)),
    "unknown names": Fault("attack choices", attack(users.choices)),
    "files of other visitors": Fault("attack users", attack(users.users)),
    "web sockets": Fault("attack streams", attack(users.streams)),
    "decoders of the page without limits": Fault("attack sandbox", attack(decoder.decoders_of)),
    "decoders of the page without seccomp": Fault("attack sandbox", attack(decoder.decoders_of)),
    "foreign hosts": Fault("attack hosts", attack(hosts.hosts)),
    "foreign websites": Fault("attack hosts", attack(hosts.hosts)),
    "uploads never deleted": Fault("attack disk", attack(disk.old_files, SWEEP=1.0)),
    "uploads of an earlier process never deleted": Fault("attack disk", attack(disk.old_files, SWEEP=1.0)),
    "uploads without a quota": Fault("attack disk", attack(disk.quota, UPLOADS=100 * limits.MB)),
    "uploads of any number of files": Fault("attack disk", attack(disk.many_files)),
    "heads without a time limit": Fault("attack one visitor", attack(visitors.slow_heads, HEAD_SECONDS=2.0)),
    "any number of connections": Fault("attack one visitor", attack(visitors.many_connections, CONNECTIONS=50)),
    "agents not refused": Fault("attack one visitor", attack(visitors.huge_bodies)),
    "bodies without a time limit": Fault("attack one visitor", attack(visitors.unfinished_bodies, **SHORT)),
    "bodies kept": Fault("attack one visitor", attack(visitors.unfinished_bodies, **SHORT)),
    "first come, first served": Fault("attack one visitor", attack(lambda server: visitors.jobs(server, 12))),
    "few jobs at once": Fault("attack one visitor", attack(visitors.crowd)),
    "sessions kept": Fault("attack one visitor", attack(visitors.never_read, UNHEARD=2.0, SEND_SECONDS=2.0)),
    "the address as HTML": Fault("attack scripts", attack(_links)),
    "decoders without limits": Fault("hostile", decoder_limits),
    "decoders that decode everything": Fault("hostile", decode(*bombs(("PNG of zeros 6 8 14000",)))),
    "decoders that crash": Fault("hostile", decode(Case("damaged", "text", lambda: b"hello", REFUSED))),
    "weights that run code": Fault("hostile", weights),
    "answers of others": Fault("load", many_users),
    "answers lost": Fault("load", many_users),
    "last come, first served": Fault("load", many_users),
    "memory leak": Fault("soak", rounds(12, 16)),
    "file leak": Fault("soak", rounds(6, 6)),
    "thread leak": Fault("soak", rounds(6, 6)),
}


def notice(name: str, control: bool = False) -> list[str]:
    """Plant a fault, and return what its check finds wrong; with `control`, the same without the fault."""
    return FAULTS[name].check("" if control else name)


def main() -> int:
    """Print a line for each fault; return 1 if one was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(FAULTS)}; all if none is named")
    parser.add_argument("--control", action="store_true", help="plant nothing: no check may fail")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in FAULTS]:
        parser.error(f"Unknown fault {unknown[0]!r}. There are: {', '.join(FAULTS)}.")
    rows = []
    for name in given.names or FAULTS:
        started = time.monotonic()
        with processes.ends_within(MINUTES):
            try:
                found = notice(name, given.control)
            except Exception as error:  # a check that does not end as it should
                found = [f"{type(error).__name__}: {error}"]
        first = found[0][:70] if found else "nothing wrong"
        print(f"{name}: {time.monotonic() - started:.0f} s: {found[:3]}", file=sys.stderr, flush=True)
        expected = "nothing wrong" if given.control else f"noticed by {FAULTS[name].command}"
        rows.append(Row(name, first, expected, bool(found) != given.control))
    return show("planted", rows)


if __name__ == "__main__":
    sys.exit(main())
