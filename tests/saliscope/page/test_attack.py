"""A part of `make attack`, `make load` and `make soak` on the running app, and what they count as a failure."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.public import load, soak
from benchmarks.public.attacks import decoder, http, users
from benchmarks.public.server import Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")


@pytest.fixture(scope="module")
def server(app: str, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The app of all tests, with the folder of uploads that it names itself."""
    found = Server(app, cast("subprocess.Popen[bytes]", None), Path(), tmp_path_factory.mktemp("log") / "none")
    path = Path(users.upload(found, users.IMAGE.read_bytes()))
    return Server(app, found.process, path.parents[1], found.log)


@pytest.mark.parametrize("group", [http.paths, http.endpoints])
def test_every_attack_gets_the_expected_answer(group: Any, server: Server) -> None:
    results = list(group(server))
    assert len(results) > 40
    assert [(each.name, each.got) for each in results if each.got != each.expected] == []
    assert users.answers_correctly(server)


@pytest.mark.slow
@pytest.mark.parametrize("group", [http.links, http.bodies, http.headers, users.choices, users.users, users.streams])
def test_every_slower_attack_gets_the_expected_answer(group: Any, server: Server) -> None:
    results = list(group(server))
    assert [(each.name, each.got) for each in results if each.got != each.expected] == []
    assert users.answers_correctly(server)


@pytest.mark.parametrize("using", [(), ("limits",)], ids=["all", "limits"])
def test_a_decoder_stays_in_its_sandbox(using: tuple[str, ...], server: Server) -> None:
    """The check notices a decoder that has its limits only."""
    results = list(decoder.attacks(server, using))
    failed = [(each.name, each.got) for each in results if each.got != each.expected]
    assert len(results) > 25 and (failed != []) == bool(using), failed


def test_two_users_at_once_get_their_own_answers(server: Server) -> None:
    rows, failures = load.load(server, count=2, rounds=1, minutes=1.0)
    measured = {row.name: row.passed for row in rows}
    assert failures == [] and measured["users"] and measured["users with answers"]
    assert measured["wrong answers and other errors"]


def user(expected: str, seconds: list[float], wrong: list[str]) -> Any:
    return SimpleNamespace(expected=expected, seconds=seconds, ideal=[1.0] * len(seconds), wrong=wrong, full=0)


def test_load_finds_wrong_late_and_missing_answers() -> None:
    def failed(*given: Any) -> set[str]:
        return {row.name for row in load.report(list(given), 1.0, 0)[0] if not row.passed}

    good = user("a", [1.0], [])
    assert failed(good, user("b", [1.2], [])) == set()
    assert failed(good, user("a", [1.2], [])) == {"users"}
    assert failed(good, user("b", [1.4], [])) == {"95th percentile"}
    assert failed(good, user("b", [1.0], ["another"])) == {"wrong answers and other errors"}
    assert failed(good, user("b", [], [])) == {"users with answers"}


def test_soak_finds_growth() -> None:
    def failed(grown: float, files: float = 0.0, uploads: float = 1.0, errors: int = 0) -> set[str]:
        samples = [(100.0 * k, 500 + grown * k / 10, 40 + files * k, 30.0, uploads) for k in range(40)]
        visits = SimpleNamespace(count=4000, failed=errors)
        return {row.name for row in soak.report(samples, cast(Any, visits), 1.0)[0] if not row.passed}

    assert failed(0.9) == set() and failed(1.1) == {"memory per 1,000 requests"}
    assert failed(0.0, files=1.0) == {"open files"} and failed(0.0, uploads=5000.0) == {"folder of uploads"}
    assert failed(0.0, errors=1) == {"requests"}
    assert soak.slope([(0, 1), (1, 3), (2, 5), (3, 7)]) == (2.0, 0.0) and soak.slope([(0, 1)]) == (0.0, math.inf)
