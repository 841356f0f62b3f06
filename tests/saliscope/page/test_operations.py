"""Operations: the log line of a request, health and metrics, shutdown, threads that end, and the shared GPU."""

from __future__ import annotations

import ctypes
import io
import json
import logging
import math
import os
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
from PIL import Image

from saliscope import limits
from saliscope.errors import Refused
from saliscope.page.operations import log, shutdown
from saliscope.page.operations.shutdown import Refusing, Shutdown
from saliscope.page.serving.door import uploads
from saliscope.page.shared.tab import run_job
from saliscope.session import engine, network_calls
from saliscope.session.jobs import runs
from saliscope.session.jobs.runs import Run
from saliscope.session.methods import costs
from tests.saliscope.browser.conftest import QUIET, free_port, served
from tests.support.coroutines import finished

ROOT = Path(__file__).parents[3]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that end in the test."""
    found: list[Run] = []
    monkeypatch.setattr(runs, "observers", [found.append])
    return found


def finish(error: BaseException | None = None, name: str = "hash/channels", stop: bool = False) -> None:
    """Run a job that ends with an error, or without one."""

    def steps(run: Run) -> Iterator[str]:
        run.about = {"method": "grad_cam", "model": "m", "layer": None, "bytes": 10}
        if stop:
            run.stop()
        yield "step"
        if error is not None:
            raise error

    list(run_job(name, steps, str))


def test_every_run_has_an_outcome(ended: list[Run]) -> None:
    from explainers.errors import LayerNotFound

    finish()
    finish(Refused("secret.png is too large"))
    finish(LayerNotFound("no layer"))
    finish(ZeroDivisionError())
    finish(stop=True)
    assert [run.outcome for run in ended] == ["done", "refused", "refused", "failed", "stopped"]
    assert {run.kind for run in ended} == {"channels"} and runs.running() == 0
    with pytest.raises(KeyError), runs.start(None):
        raise KeyError
    with runs.start("hash", question="a"), runs.start("hash", question="b"):
        assert runs.running() == 2
    assert [(run.kind, run.outcome) for run in ended[5:]] == [("api", "failed"), ("map", "done"), ("map", "superseded")]
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


def test_a_line_says_nothing_about_the_content(ended: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    finish(Refused("/uploads/secret.png"))
    log.write("request", **log.fields(ended[0]))
    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("Z") and 0 <= line.pop("seconds") < 5
    assert line == {
        "event": "request", "kind": "channels", "method": "grad_cam", "model": "m", "layer": None, "bytes": 10,
        "outcome": "refused",
    }  # fmt: skip


def test_messages_of_libraries_are_lines_without_their_values() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log._Lines())
    logger = logging.Logger("saliscope")
    logger.addHandler(handler)
    try:
        raise FileNotFoundError("/uploads/secret.png")
    except FileNotFoundError as error:
        logger.error("request failed for %s", "secret.png", exc_info=error)
    assert "secret.png" not in stream.getvalue()
    line = json.loads(stream.getvalue())
    assert line["error"] == "FileNotFoundError" and line["level"] == "error"
    assert line["message"] == "request failed for %s" and "test_messages_of" in line["raised"][-1]


def test_monitoring_counts_requests(monkeypatch: pytest.MonkeyPatch, ended: list[Run]) -> None:
    pytest.importorskip("prometheus_client", reason="an extra: pip install -e '.[monitoring]'")
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from saliscope.images.decoder import pool, sandbox
    from saliscope.page.operations.metrics import Monitoring
    from saliscope.session import model_cache

    monitoring = Monitoring(waiting=lambda: 3)
    runs.observers.append(monitoring.observe)
    finish()
    finish(Refused("no"))
    client = TestClient(Starlette(routes=monitoring.routes))
    lines = client.get("/metrics").text.splitlines()
    assert 'saliscope_requests_total{kind="channels",method="grad_cam",outcome="done"} 1.0' in lines
    assert 'saliscope_requests_total{kind="channels",method="grad_cam",outcome="refused"} 1.0' in lines
    assert 'saliscope_request_seconds_count{method="grad_cam"} 2.0' in lines
    assert {"saliscope_queue_length 3.0", "saliscope_running 0.0", "saliscope_decoder_restarts_total 0.0"} <= set(lines)
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    monkeypatch.setattr(model_cache, "_loaded", {"net": None})
    isolation = {"sandbox": pool.mechanisms(), "hidden": sandbox.is_hidden()}
    healthy = client.get("/healthz")
    assert healthy.status_code == 200
    assert healthy.json() == {"status": "ok", "model": "net", "queue": 3, "disk": "ok", **isolation}
    assert "saliscope_disk_full 0.0" in lines and any(line.startswith("saliscope_uploads_bytes ") for line in lines)
    with monkeypatch.context() as patch:
        patch.setattr(uploads, "is_full", lambda: True)
        full = client.get("/healthz")
        assert (full.status_code, full.json()["status"], full.json()["disk"]) == (503, "disk full", "full")
        assert "saliscope_disk_full 1.0" in client.get("/metrics").text.splitlines()
    monitoring.stopping = lambda: True
    assert (client.get("/healthz").status_code, client.get("/healthz").json()["status"]) == (503, "stopping")
    monkeypatch.setattr(model_cache, "_loaded", {})
    monitoring.stopping = lambda: False
    assert (client.get("/healthz").status_code, client.get("/healthz").json()["status"]) == (503, "loading")


def test_monitoring_says_which_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from saliscope.page.operations.metrics import Monitoring

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(Refused, match=r"needs the package prometheus.*pip install \"saliscope\[monitoring\] @ git\+"):
        Monitoring()


def status(refusing: Refusing, method: str, path: str) -> int:
    """The status of a request."""
    found: list[Any] = []

    async def send(message: Any) -> None:
        found.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    finished(refusing(scope, None, send))  # type: ignore[arg-type]
    return int(found[0]["status"])


def test_a_stopping_server_refuses_new_requests_only() -> None:
    stopping, counts = Shutdown(), list[bool]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        counts.append(stopping.answering())
        await send({"type": "http.response.start", "status": 200, "headers": []})

    refusing = Refusing(app, stopping)
    new = [
        ("GET", "/"),
        *(("POST", f"/gradio_api/{name}") for name in ("queue/join", "call/explain", "upload", "run/x")),
    ]
    old = [("GET", "/gradio_api/queue/data"), ("GET", "/gradio_api/call/explain/1"), ("GET", "/gradio_api/file=/tmp/x")]
    old += [("POST", "/gradio_api/cancel"), ("POST", "/gradio_api/reset"), ("GET", "/healthz"), ("GET", "/hl/a.js")]
    assert [status(refusing, *each) for each in new + old] == [200] * 12
    assert counts == [False, True, True, True, True, True, True, False, False, False, False, False]
    stopping.requested.set()
    assert [status(refusing, *each) for each in new] == [503] * 5
    assert [status(refusing, *each) for each in old] == [200] * 7 and not stopping.answering()


def test_the_end_waits_for_running_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_SECONDS", 5.0)
    monkeypatch.setattr(shutdown.signal, "signal", lambda *_: None)
    stopping, over = Shutdown(), list[float]()
    stopping.requested.set()

    def work() -> None:
        with runs.start(None):
            time.sleep(0.6)
            over.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    while not runs.running():
        time.sleep(0.01)
    stopping.wait()
    assert over and over[0] <= time.monotonic()
    thread.join()

    monkeypatch.setattr(limits, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(limits, "STOP_MARGIN", 5.0)
    with runs.start(None) as run:
        assert run is not None
        threading.Timer(0.6, run.stopped).start()
        stopping_thread = threading.Thread(target=stopping.wait)
        stopping_thread.start()
        while not run.stopped():
            time.sleep(0.01)
    stopping_thread.join()


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


SPACES = '''
"""Records the durations of calls, as the package `spaces` reserves them."""
import functools, json, os, pickle
def GPU(task=None, *, duration=60, size=None):
    def wrap(function):
        @functools.wraps(function)
        def call(*values, **keywords):
            seconds = duration(*values, **keywords) if callable(duration) else duration
            pickle.dumps((values, keywords))  # a call runs in another process
            print(json.dumps(seconds), flush=True)
            return function(*values, **keywords)
        return call
    return wrap if task is None else wrap(task)
'''


@pytest.mark.slow
def test_the_shared_gpu_is_reserved_for_the_time_of_the_method(tmp_path: Path) -> None:
    (tmp_path / "spaces.py").write_text(SPACES, encoding="utf-8")
    code = """
from saliscope.page.serving import before_torch
from saliscope.session import model_cache, network_calls
import torch
model_cache.start("efficientnet_lite0", 0.0)
model_cache.ready.wait()
images = torch.zeros(1, 3, 224, 224)
name = model_cache.first_model()
network_calls.scores(name, images)
network_calls.explain(name, "grad_cam", images, layer="head")
network_calls.explain(name, "occlusion", images, progress=lambda step: True, window=100, stride=100)
def around(explain, network, images, **options):
    return explain(network, images, **options)
network_calls.explain(name, "ablation_cam", images, layer="head", around=around)
partial, seconds = network_calls.partial, network_calls.gpu_seconds
print(seconds(name, partial(network_calls._explain_in_batches, 8, "kernel_shap"), images, budget=48.0))
print(seconds(name, partial(network_calls._randomize, "x"), images, budget=48.0))
"""
    environment = {**os.environ, **QUIET, "SPACES_ZERO_GPU": "true", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    starting, forward, known = network_calls.STARTING, network_calls.FORWARD, costs.table()
    methods = ("grad_cam", "occlusion", "ablation_cam", "kernel_shap")
    expected = [starting + math.ceil(known["passes"][method] * known["forward"]) for method in methods]
    assert found == [starting + forward, *expected, limits.SECONDS] and expected[-1] > expected[0] + 10


SPACE = {
    "SYSTEM": "spaces",
    "SPACE_ID": "me/saliscope",
    "SPACE_HOST": "me-saliscope.hf.space",
    "SPACES_ZERO_GPU": "true",
}


@pytest.mark.slow
def test_the_page_starts_with_the_variables_of_a_space(tmp_path: Path) -> None:
    with served(tmp_path, **SPACE) as address:
        assert address
    text = (tmp_path / "app.log").read_text()
    assert "Traceback" not in text and "Exception" not in text, text


@pytest.mark.slow
def test_sigterm_ends_the_server_with_status_0(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "app.py", "--port", str(port)]
    environment = {**os.environ, **QUIET, "GRADIO_TEMP_DIR": str(tmp_path), "SALISCOPE_LOG_FORMAT": "json"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and "running" in process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
