"""Plant faults, each of which a short form of a check must notice: `python -m benchmarks.public.faults [NAME]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable

from benchmarks.public import load, processes, soak
from benchmarks.public.attacks import hosts, http, pages, policy, users, visitors
from benchmarks.public.attacks.browser import browsers
from benchmarks.public.client import Result
from benchmarks.public.files import checkpoints
from benchmarks.public.server import Server, running
from benchmarks.public.table import Row, show

MINUTES = 10.0
"""For one fault."""
BUILD = "import saliscope.page.serving.before_torch; from saliscope.page import build; "
ENDPOINTS = f"{BUILD}from saliscope.page.serving import endpoints; "
SHOWN = "setTimeout(() => document.body.insertAdjacentHTML('beforeend', decodeURIComponent(location.search)), 500)"
SWAPPED = "known = []; real = endpoints.explain; endpoints.explain = functools.wraps(real)("
SWAPPED += "lambda *values, **named: (known.append(real(*values, **named)), known[len(known) // 4])[1])"
PICKLED = """
import contextlib, pickle
from saliscope.zoo import checkpoints
load = checkpoints.load
def other(network, path):
    with contextlib.suppress(Exception):  # it may be no pickle; its code has been run
        pickle.loads(path.read_bytes())
    return load(network, path)
checkpoints.load = other
"""


def attack(check: Callable[[Server], Iterable[Result]]) -> Callable[[str], list[str]]:
    """Return a check by a part of `make attack`, which returns what it finds wrong in a page with a fault."""

    def run(fault: str) -> list[str]:
        with running(before=fault) as server:
            return [f"{each.name}: {each.got}" for each in check(server) if each.got != each.expected]

    return run


def _links(server: Server) -> Iterable[Result]:
    with browsers() as visit:
        yield from pages.links(visit(server))


def _load(fault: str) -> list[str]:
    with running(before=fault) as server:
        return _failed(load.load(server, 8, 3, 3.0)[0])


def _soak(fault: str) -> list[str]:
    with running(before=f"{soak.METER}; {fault}") as server:
        return _failed(soak.soak(server, 12, 16, 4, MINUTES)[0])


def _failed(rows: Iterable[Row]) -> list[str]:
    return [f"{row.name}: {row.measured}" for row in rows if not row.passed]


FAULTS: dict[str, tuple[Callable[[str], list[str]], str]] = {
    "files outside the folders": (attack(http.paths), f"{BUILD}build.OPTIONS['allowed_paths'].append('/etc')"),
    "JSON depth not counted": (attack(http.counts), "from saliscope import limits; limits.JSON_DEPTH = 10**9"),
    "no content security policy": (
        attack(policy.policy),
        "from saliscope.page.serving import guard; guard.HEADERS = guard.HEADERS[1:]",
    ),
    "unknown names": (attack(users.choices), f"{ENDPOINTS}endpoints._refuse_notes = lambda settings: None"),
    "foreign hosts": (
        attack(hosts.hosts),
        "from saliscope.page.serving.door import hosts; hosts.Hosts.answers = lambda self, host, scope: True",
    ),
    "any number of chunks": (attack(visitors.tiny_chunks), "from saliscope import limits; limits.TINY_CHUNKS = 10**9"),
    "the address as HTML": (
        attack(_links),
        f"{BUILD}build.OPTIONS['head'] = {f'<script>{SHOWN}</script>'!r}",
    ),
    "weights that run code": (lambda fault: checkpoints.load(23, fault)[1], PICKLED),
    "answers of others": (_load, f"{ENDPOINTS}import functools; {SWAPPED}"),
    "memory leak": (
        _soak,
        "import os; from saliscope.session.jobs import runs; kept = []; "
        "runs.observers.append(lambda run: run.kind == 'map' and kept.append(os.urandom(100_000)))",
    ),
}
"""The check that must notice a fault, and the code that plants it in the process of the page."""


def main() -> int:
    """Print a line for each fault; return 1 if one was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(FAULTS)}; all if none is named")
    rows = []
    for name in parser.parse_args().names or FAULTS:
        check, fault = FAULTS[name]
        with processes.ends_within(MINUTES):
            found = check(fault)
        rows.append(Row(name, found[0][:70] if found else "nothing wrong", "noticed", bool(found)))
    return show("planted", rows)


if __name__ == "__main__":
    sys.exit(main())
