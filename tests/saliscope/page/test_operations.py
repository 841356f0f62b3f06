"""Operations: the outcome and log line of a request, health and metrics, shutdown, threads that end, the shared GPU."""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from saliscope import limits
from saliscope.compute import engine, network_calls
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.methods import costs
from saliscope.errors import Refused
from saliscope.page.events import run_job
from saliscope.page.operations import log, shutdown
from saliscope.page.operations.shutdown import Refusing, Shutdown
from tests.saliscope.browser.conftest import QUIET, free_port
from tests.saliscope.page.guarded import ask, respond

ROOT = Path(__file__).parents[3]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that end in the test."""
    found: list[Run] = []
    monkeypatch.setattr(runs, "observers", [found.append])
    return found


def finish(error: BaseException | None = None, stop: bool = False) -> None:
    """Run a job that ends with an error, or without one."""

    def steps(run: Run) -> Iterator[str]:
        run.about = {"method": "grad_cam", "model": "m", "layer": None, "bytes": 10}
        if stop:
            run.stop()
        yield "step"
        if error is not None:
            raise error

    list(run_job("hash/channels", steps, str))


def test_every_run_has_an_outcome(ended: list[Run]) -> None:
    from explainers import LayerNotFound

    for error in (None, Refused("secret.png is too large"), LayerNotFound("no layer"), ZeroDivisionError()):
        finish(error)
    finish(stop=True)
    assert [run.outcome for run in ended] == ["done", "refused", "refused", "failed", "stopped"]
    assert {run.kind for run in ended} == {"channels"} and runs.running() == 0
    with runs.start("hash", question="a"), runs.start("hash", question="b"):
        assert runs.running() == 2
    with runs.start(None):
        pass
    assert [(run.kind, run.outcome) for run in ended[5:]] == [("map", "done"), ("map", "superseded"), ("api", "done")]
    job = run_job("hash/x", lambda run: iter(["step", "step"]), str)
    next(job)
    job.close()
    assert ended[-1].outcome == "stopped", "the visitor has left"


def test_a_failed_run_keeps_nothing_of_its_work() -> None:
    """The latest run of each user and part of the page stays, but not the images in the traceback of its error."""
    seen: list[weakref.ref[Any]] = []

    def steps(_: Run) -> Iterator[str]:
        image = Image.new("RGB", (8, 8))
        seen.append(weakref.ref(image))
        yield "step"
        raise Refused("no")

    list(run_job("hash/failed", steps, str))
    assert seen[0]() is None


def test_lines_of_the_log_say_nothing_about_the_content(
    ended: list[Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    monkeypatch.setitem(log.config.LOGGING_CONFIG, "loggers", {})
    log.start()
    finish(Refused("/uploads/secret.png"))
    try:
        raise FileNotFoundError("/uploads/secret.png")
    except FileNotFoundError as error:
        logging.error("request failed for %s", "secret.png", exc_info=error)
    printed = capsys.readouterr().err
    request, message = map(json.loads, printed.splitlines())
    assert request.pop("time").endswith("Z") and 0 <= request.pop("seconds") < 5
    expected = {"kind": "channels", "method": "grad_cam", "model": "m", "layer": None, "bytes": 10}
    assert request == {"event": "request", "outcome": "refused"} | expected
    assert (message["error"], message["level"]) == ("FileNotFoundError", "error")
    assert message["message"] == "request failed for %s" and "test_lines_of" in message["raised"][-1]
    assert "secret.png" not in printed


def test_monitoring_counts_requests(monkeypatch: pytest.MonkeyPatch, ended: list[Run]) -> None:
    pytest.importorskip("prometheus_client", reason="an extra: pip install -e '.[monitoring]'")
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from saliscope.compute import model_cache
    from saliscope.images.decoder import pool, sandbox
    from saliscope.page.operations.metrics import Monitoring
    from saliscope.page.serving.door import uploads

    loaded = ["net"]
    monkeypatch.setattr(model_cache, "first_model", lambda: loaded[0] if loaded else "")
    monitoring = Monitoring(waiting=lambda: 3)
    runs.observers.append(monitoring.observe)
    finish()
    finish(Refused("no"))
    client = TestClient(Starlette(routes=monitoring.routes))

    def health() -> tuple[int, str, str]:
        answer = client.get("/healthz")
        return answer.status_code, answer.json()["status"], answer.json()["disk"]

    lines = client.get("/metrics").text.splitlines()
    assert 'saliscope_requests_total{kind="channels",method="grad_cam",outcome="refused"} 1.0' in lines
    assert 'saliscope_request_seconds_count{method="grad_cam"} 2.0' in lines
    gauges = {"queue_length 3.0", "running 0.0", "decoder_restarts_total 0.0", "disk_full 0.0", "model_loaded 1.0"}
    assert {f"saliscope_{gauge}" for gauge in gauges} <= set(lines)
    assert any(line.startswith("saliscope_uploads_bytes ") for line in lines)
    isolation = {"sandbox": pool.mechanisms(), "hidden": sandbox.is_hidden()}
    assert client.get("/healthz").json() == {"status": "ok", "model": "net", "queue": 3, "disk": "ok", **isolation}
    assert health() == (200, "ok", "ok")
    monkeypatch.setattr(uploads, "is_full", lambda: True)
    assert health() == (503, "disk full", "full")
    assert "saliscope_disk_full 1.0" in client.get("/metrics").text.splitlines()
    loaded.clear()
    assert health() == (503, "loading", "full")
    monitoring.stopping = lambda: True
    assert health() == (503, "stopping", "full")


# The end of the server


def test_a_stopping_server_refuses_new_requests_only() -> None:
    stopping, counts = Shutdown(), list[bool]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        counts.append(stopping.answering())
        await respond(send)

    def statuses(method: str, *paths: str) -> list[int]:
        return [ask(method, path, app=Refusing(app, stopping)).status for path in paths]

    new = [f"/gradio_api/{name}" for name in ("queue/join", "call/explain", "upload", "run/explain")]
    old = [f"/gradio_api/{name}" for name in ("queue/data", "call/explain/1", "file=/tmp/x")]
    assert statuses("POST", *new) == [200] * 4 and statuses("GET", "/", *old, "/hl/a.js") == [200] * 5
    assert counts == [*[True] * 4, False, *[True] * 2, *[False] * 2]
    stopping.requested.set()
    assert statuses("POST", *new) == [503] * 4 and statuses("GET", "/") == [503]
    assert statuses("GET", *old, "/healthz") == [200] * 4 and not stopping.answering()
    assert statuses("POST", "/gradio_api/cancel", "/gradio_api/reset") == [200] * 2


def test_the_end_waits_for_running_answers_and_stops_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown.signal, "signal", lambda *_: None)
    monkeypatch.setattr(limits, "STOP_MARGIN", 5.0)
    stopping, over = Shutdown(), list[str]()
    stopping.requested.set()

    def work(name: str, seconds: float) -> None:
        with runs.start(None) as run:
            end = time.monotonic() + seconds
            while run and not run.stopped() and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.2)
            over.append(f"{name} {'stopped' if run and run.cancelled else 'done'}")

    for name, patience, seconds in (("short", 20.0, 0.4), ("long", 0.1, 60.0)):
        monkeypatch.setattr(limits, "STOP_SECONDS", patience)
        thread = threading.Thread(target=work, args=(name, seconds))
        thread.start()
        while not runs.running():
            time.sleep(0.01)
        started = time.monotonic()
        stopping.wait()
        assert over and over[-1].startswith(name) and time.monotonic() - started < 15
        thread.join()
    assert over == ["short done", "long stopped"]


def test_an_ended_thread_is_one_failed_request() -> None:
    """SystemExit in a worker thread must reach neither the event loop nor the next request."""
    begun = threading.Event()

    def work(report: Any) -> None:
        begun.set()
        for _ in range(1000):
            time.sleep(0.01)

    def end() -> None:
        begun.wait()
        worker = next(thread for thread in threading.enumerate() if thread.name == "work")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(SystemExit))

    threading.Thread(target=end).start()
    answers = list(run_job("hash", lambda run: engine.stream(work, run), lambda message: f"error: {message}"))
    assert len(answers) == 1 and answers[0].startswith("error: ")
    assert list(run_job("hash", lambda run: iter(["next"]), str)) == ["next"]


@pytest.mark.parametrize(("stop", "shown"), [(True, "stopped"), (False, "the reason")])
def test_the_message_after_a_stop_hides_no_other_error(stop: bool, shown: str) -> None:
    def fail(run: Any) -> Any:
        if stop:
            run.stop()
        raise Refused("the reason")

    assert list(run_job("hash/failing", fail, str, stopped="stopped")) == [shown]


# A Space


def test_the_shared_gpu_is_reserved_for_the_time_of_the_method(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> None:
    """As the package `spaces` runs a call, in another process for this time."""
    reserved, run = list[int](), network_calls.run

    def call(*values: Any, **keywords: Any) -> Any:
        pickle.dumps((values, keywords))
        reserved.append(network_calls.gpu_seconds(*values, **keywords))
        return run(*values, **keywords)

    for place, name, value in (
        (limits, "SHARED_GPU", True),
        (network_calls, "spaces", object()),
        (network_calls, "run", call),
    ):
        monkeypatch.setattr(place, name, value)
    name, images = loaded.name, torch.zeros(1, 3, 224, 224)
    network_calls.scores(name, images)
    network_calls.explain(name, "grad_cam", images, layer="head")
    network_calls.explain(name, "occlusion", images, progress=lambda step: True, window=100, stride=100)
    starting, methods = network_calls.STARTING, ("grad_cam", "occlusion")
    quick, long = (starting + math.ceil(costs.seconds(method, loaded) or 0) for method in methods)
    assert reserved == [starting + network_calls.FORWARD, quick, long] and long > quick
    assert network_calls.gpu_seconds(name, print, images, budget=48.0) == limits.SECONDS


@pytest.mark.slow
def test_the_page_of_a_space_starts_and_ends_with_status_0(tmp_path: Path) -> None:
    space = {"SYSTEM": "spaces", "SPACE_ID": "me/saliscope", "SPACE_HOST": "me-saliscope.hf.space"}
    environment = {**os.environ, **QUIET, **space, "SPACES_ZERO_GPU": "true", "GRADIO_TEMP_DIR": str(tmp_path)}
    environment["SALISCOPE_LOG_FORMAT"] = "json"
    command = [sys.executable, "app.py", "--port", str(free_port())]
    with open(tmp_path / "log", "w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None and "running" in process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text and "Exception" not in text, text
