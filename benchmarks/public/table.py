"""The table that each command prints, and its exit status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of a table: what was tested, what was measured, the limit, and whether it holds."""

    name: str
    measured: str
    limit: str
    passed: bool


def show(title: str, rows: Iterable[Row], failures: Iterable[str] = ()) -> int:
    """Print the rows and the failures.

    Returns  the exit status: 1 if a row has failed or there are failures
    """
    rows, failures = list(rows), list(failures)
    names = [max([len(title), *(len(getattr(row, field)) for row in rows)]) for field in ("name", "measured", "limit")]
    print(f"{title:<{names[0]}}  {'measured':<{names[1]}}  {'limit':<{names[2]}}")
    for row in rows:
        end = "" if row.passed else "  FAILED"
        print(f"{row.name:<{names[0]}}  {row.measured:<{names[1]}}  {row.limit:<{names[2]}}{end}".rstrip())
    for failure in failures:
        print(f"FAILED: {failure}")
    return int(bool(failures) or not all(row.passed for row in rows))
