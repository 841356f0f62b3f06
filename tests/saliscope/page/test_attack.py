"""A part of `make attack`, `make load` and `make soak` on the running app, and the faults that they must notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from benchmarks.public import client, load
from benchmarks.public.attacks import http, users
from benchmarks.public.client import Server
from benchmarks.public.faults import FAULTS
from saliscope import limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
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
    results = [each for each in group(server) if "/mcp" not in each.name]  # this app has tools for agents
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


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(name: str) -> None:
    assert FAULTS[name]() != []
