"""Attack a running page: `make attack`.

Every request must get exactly the expected status, nothing may be read, fetched or run that should not be, and the page
must answer as before. `--only GROUP` runs some groups; scripts need Chromium.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import options
from benchmarks.public.attacks import decoder, http, pages, users
from benchmarks.public.client import Result, Row, Server, answers_correctly, running, show

ERROR = re.compile(r"Traceback|\w+(\.\w+)*(Error|Exception)\b.*|.*\"level\": \"error\".*")
"""A line of the log about an error, the first and the last one of a traceback."""
GROUPS: dict[str, Callable[[Server], Iterator[Result]]] = {
    **{each.__name__: each for each in (http.paths, http.links, http.bodies, http.counts, http.headers)},
    **{each.__name__: each for each in (http.policy, http.endpoints, users.choices, users.users, users.streams)},
    "sandbox": decoder.attacks,
    "hosts": http.hosts,
    "disk": users.disk,
    "one visitor": users.one_visitor,
    "scripts": pages.scripts,
}


def attack(server: Server, names: list[str]) -> tuple[list[Row], list[str]]:
    """Run groups of attacks; return the lines of the table and the failures."""
    rows, failures = list[Row](), list[str]()
    for name in names:
        results, started = list[Result](), time.monotonic()
        try:
            results.extend(GROUPS[name](server))
        except Exception as error:  # the page did something that no attack expects
            results.append(Result("an attack that ends", f"{type(error).__name__}: {error}", "no error"))
        print(f"{name}: {len(results)} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        wrong = [result for result in results if result.got != result.expected]
        failures += [f"{name}: {each.name}: {each.got!r}, expected {each.expected!r}" for each in wrong]
        measured = f"{len(results) - len(wrong)} of {len(results)} as expected"
        rows.append(Row(name, measured, "all", not wrong and bool(results)))
    alive = answers_correctly(server)
    rows.append(Row("answer afterwards", "correct" if alive else "none or another", "correct", alive))
    errors = [line for line in server.log.read_text(encoding="utf-8").splitlines() if ERROR.match(line)]
    rows.append(Row("unexpected errors", str(len(errors)), "0", not errors))
    return rows, failures + [f"error in the log: {line}" for line in errors[:10]]


def main() -> None:
    """Print the table; end with the status 1 if anything failed."""
    names = options(__doc__, only=tuple(GROUPS)).only
    with running() as server:
        show("attacks", *attack(server, names))


if __name__ == "__main__":
    main()
