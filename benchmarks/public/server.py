"""The app in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 180.0
"""Seconds until the first model must be loaded."""
RUN = "import runpy; {}\nrunpy.run_module('saliscope', run_name='__main__', alter_sys=True)"


@dataclass(frozen=True)
class Server:
    """A running app."""

    url: str
    process: subprocess.Popen[bytes]
    uploads: Path
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def lines(self) -> list[dict[str, object]]:
        """Return the JSON lines of all requests."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextlib.contextmanager
def running(*arguments: str, before: str = "", wait: bool = True, **variables: str) -> Iterator[Server]:
    """Start the app offline, with environment variables and code that runs before it.

    `wait` until its model answers.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place, log = Path(folder) / "uploads", Path(folder) / "app.log"
        environment = {**os.environ, "SALISCOPE_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": str(place)}
        environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **variables}
        program = ["-c", RUN.format(before)] if before else ["-m", "saliscope"]
        command = [sys.executable, *program, "serve", "--port", str(port), "--log-format", "json", *arguments]
        with open(log, "wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        server = Server(f"http://127.0.0.1:{port}", process, place, log)
        try:
            if wait:
                _wait(server)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(server: Server) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            body = {"data": []}
            if httpx.post(f"{server.url}/gradio_api/run/list_models", json=body, timeout=PATIENCE).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"The app does not answer: {server.log.read_text(encoding='utf-8')[-2000:]}")
