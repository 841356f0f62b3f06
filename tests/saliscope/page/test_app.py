"""The options of `saliscope serve`: invalid ports, hosts, models and weights are refused before the page is served."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import explainers
from saliscope.__main__ import main
from tests.saliscope.browser.conftest import QUIET
from tests.support.catalog import isolate_catalog

ROOT = Path(__file__).parents[3]


def refused(*arguments: str) -> int:
    """The exit code of a command that ends with an error."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert isinstance(end.value.code, int)
    return end.value.code


def test_an_address_that_cannot_be_used_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for port in ("0", "-5", "65536", "80000", "x"):
        assert refused("serve", "--port", port) == 2 and "Invalid value for '--port'" in capsys.readouterr().err
    for host in ("999.1.1.1", "203.0.113.7"):
        refused("serve", "--host", host)
        assert f"'{host}' is not an address of this machine" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        refused("serve", "--port", port)
    assert f"Port {port} is already in use" in capsys.readouterr().err


def test_weights_that_cannot_be_used_give_one_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For `serve`, for `app.py`, and for the other commands, whether the model or the file is the problem."""
    isolate_catalog(monkeypatch, tmp_path)
    monkeypatch.setattr(explainers, "keep_freed_memory", lambda: None)  # it would affect all tests in this process
    wrong, missing, lite = tmp_path / "wrong.pt", str(tmp_path / "missing.pt"), ("--model", "efficientnet_lite0")
    wrong.write_bytes(b"garbage")
    command = [sys.executable, "app.py", "--weights", str(wrong), *lite]
    environment = {**os.environ, **QUIET, "SALISCOPE_MODEL": "auto"}
    page = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    explain = ("explain", str(ROOT / "assets" / "examples"), "--out", str(tmp_path / "run"))
    for arguments in (("serve",), explain):
        for weights in (missing, str(wrong)):
            assert refused(*arguments, "--weights", weights) == 1
            assert "--weights needs --model. Name the model" in "".join(capfd.readouterr())
    for weights in (missing, str(wrong)):
        assert refused(*explain, "--weights", weights, *lite) == 1
        printed = "".join(capfd.readouterr())
        assert f"{Path(weights).name} " in printed and "Traceback" not in printed
    printed = page.communicate(timeout=120)[1]
    assert page.returncode == 1 and printed.count("wrong.pt ") == 1 and "Traceback" not in printed
