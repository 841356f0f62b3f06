"""Plant faults, each of which a short form of a check must notice: `python -m benchmarks.public.faults --only NAME`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks import options
from benchmarks.public import load, soak
from benchmarks.public.attacks import http, users
from benchmarks.public.client import Result, Row, Server, running, show
from benchmarks.public.files import checkpoints

SWAPPED = """import functools
from saliscope.page.serving import endpoints
known, explain = [], endpoints.explain
@functools.wraps(explain)
def other(*values, **named):
    known.append(explain(*values, **named))
    return known[len(known) // 4]
endpoints.explain = other"""
PICKLED = """import contextlib, pickle
from saliscope.zoo import checkpoints
load = checkpoints.load
def other(network, path):
    with contextlib.suppress(Exception):  # it may be no pickle; its code has been run
        pickle.loads(path.read_bytes())
    return load(network, path)
checkpoints.load = other"""
LEAK = """import os
from saliscope.compute.jobs import runs
kept = []
runs.observers.append(lambda run: run.kind == 'map' and kept.append(os.urandom(100_000)))"""


def attack(check: Callable[[Server], Iterable[Result]], fault: str) -> list[str]:
    """Return what a part of `make attack` finds wrong in a page with a fault."""
    with running(before=fault) as server:
        return [f"{each.name}: {each.got}" for each in check(server) if each.got != each.expected]


def _rows(check: Callable[[Server], tuple[list[Row], list[str]]], fault: str) -> list[str]:
    with running(before=fault) as server:
        return [f"{row.name}: {row.measured}" for row in check(server)[0] if not row.passed]


LIMIT = "from saliscope import limits; limits.{} = 10**9".format
HOSTS = "from saliscope.page.serving.door.hosts import Hosts; Hosts.answers = lambda self, host, scope: True"
FAULTS: dict[str, Callable[[], list[str]]] = {
    "JSON depth not counted": lambda: attack(http.counts, LIMIT("JSON_DEPTH")),
    "any number of chunks": lambda: attack(users.tiny_chunks, LIMIT("TINY_CHUNKS")),
    "foreign hosts": lambda: attack(http.hosts, HOSTS),
    "weights that run code": lambda: checkpoints.load(23, PICKLED, 60)[1],
    "answers of others": lambda: _rows(lambda server: load.load(server, 8, 3, 3.0), SWAPPED),
    "memory leak": lambda: _rows(lambda server: soak.soak(server, 12, 16, 4, 10.0), f"{soak.METER}; {LEAK}"),
}
"""The check of a page with the fault, which returns what it finds wrong."""


def main() -> None:
    """Print a line for each fault; end with the status 1 if one was not noticed."""
    rows = []
    for name in options(__doc__, only=tuple(FAULTS)).only:
        found = FAULTS[name]()
        rows.append(Row(name, found[0][:70] if found else "nothing wrong", "noticed", bool(found)))
    show("planted", rows)


if __name__ == "__main__":
    main()
