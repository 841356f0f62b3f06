"""A part of `make attack`, `make load` and `make soak` on the running app, and the faults that they must notice."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from benchmarks.public import client, load, soak
from benchmarks.public.attacks import http, users
from benchmarks.public.client import Server
from benchmarks.public.faults import FAULTS
from saliscope import limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
QUICK_FAULT = "weights that run code"
"""It needs no server."""
QUICK = [http.paths, http.links, http.endpoints, http.counts, http.policy]
SLOW = [http.bodies, http.headers, http.hosts, users.choices, users.users, users.streams]


@pytest.fixture(scope="module")
def server(app: str, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The app of all tests, with the folder of uploads that it names itself."""
    found = Server(app, cast("subprocess.Popen[bytes]", None), Path(), tmp_path_factory.mktemp("log") / "none")
    path = Path(client.upload(found, client.IMAGE.read_bytes()))
    return Server(app, found.process, path.parents[1], found.log)


@pytest.mark.parametrize("group", [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_every_attack_gets_the_expected_answer(group: Any, server: Server) -> None:
    results = list(group(server))
    assert len(results) >= 8 or group in SLOW
    assert [(each.name, each.got) for each in results if each.got != each.expected] == []
    assert client.answers_correctly(server)


def test_a_refused_upload_leaves_no_file(server: Server) -> None:
    """Gradio keeps a part without a file name in memory; sent in pieces, a body declares no length."""
    before = set(server.uploads.rglob("*"))
    kind = {"content-type": "multipart/form-data; boundary=b"}
    head = b'--b\r\nContent-Disposition: form-data; name="files"'
    whole = head + b'; filename="a.png"\r\n\r\n' + bytes(limits.FILE + 300 * 1024)
    nameless = head + b"\r\n\r\nx\r\n--b--\r\n"
    pieces = (nameless[:-9] if number == 0 else bytes(limits.MB) for number in range(limits.FILE // limits.MB + 4))
    for content, status, reason in ((whole, 413, "exceeds"), (pieces, 413, "exceeds"), (nameless, 400, "no name")):
        answer = httpx.post(f"{server.url}/gradio_api/upload", content=content, headers=kind, timeout=60)
        assert answer.status_code == status and reason in answer.json()["detail"]
    assert set(server.uploads.rglob("*")) == before


def test_two_users_at_once_get_their_own_answers(server: Server) -> None:
    rows, failures = load.load(server, count=2, rounds=1, minutes=1.0)
    measured = {row.name: row.passed for row in rows}
    assert failures == [] and measured["users"] and measured["users with answers"]
    assert measured["wrong answers and other errors"]


def test_soak_finds_growth_and_needs_enough_rounds() -> None:
    def failed(grown: float, files: int = 0, threads: int = 0, errors: int = 0, rounds: int = 10) -> set[str]:
        samples = [soak.Sample(500 + grown * k, 900.0, 40 + files * k, 30 + threads * k, 1.0) for k in range(rounds)]
        return {row.name for row in soak.report(samples, 1000, errors)[0] if not row.passed}

    assert failed(soak.LIMIT - 1) == set() and failed(soak.LIMIT + 1) == {"memory per 1,000 answers"}
    assert failed(0.0, files=1) == {"open files"} and failed(0.0, threads=5) == {"threads"}
    assert failed(0.0, errors=1) == {"questions"} and failed(0.0, rounds=3) == failed(0.0, rounds=0) == {"rounds"}


@pytest.mark.parametrize("questions, rounds, noise", [(24, 10, 2.0), (12, 8, 0.3), (1000, 6, 5.0)])
def test_the_judgement_of_memory_is_seldom_wrong(questions: int, rounds: int, noise: float) -> None:
    """Simulated runs, with noise around the memory at rest, and up to ten times as much in one round of ten."""

    def leaks(per_thousand: float, seed: int) -> bool:
        rng = random.Random(seed)
        found = []
        for number in range(rounds):
            above = rng.uniform(0, 10 * noise) if rng.random() < 0.1 else 0.0
            found.append(600 + per_thousand * questions / 1000 * number + rng.gauss(0, noise) + above)
        return soak.judge(found, questions)[1]

    runs = 60
    assert sum(leaks(soak.LEAK, seed) for seed in range(runs)) >= 0.95 * runs
    assert sum(leaks(0.0, seed) for seed in range(runs)) <= 0.05 * runs


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each != QUICK_FAULT)) for each in FAULTS]
)
def test_a_planted_fault_is_noticed(name: str) -> None:
    assert FAULTS[name]() != []
