"""The options of `hooklens serve`: invalid ports, hosts and models are refused before the page is served."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from hooklens.__main__ import main


@pytest.mark.parametrize("port", ["0", "-5", "65536", "80000", "x"])
def test_an_invalid_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--port", port])
    assert end.value.code == 2 and "Invalid value for '--port'" in capsys.readouterr().err


def test_a_port_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(SystemExit):
            main(["serve", "--port", str(port)])
    assert f"Port {port} is already in use" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["999.1.1.1", "203.0.113.7"])
def test_an_address_of_another_machine_is_refused(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--host", host])
    assert f"'{host}' is not an address of this machine" in capsys.readouterr().err


def test_an_unknown_model_is_reported_once() -> None:
    command = [sys.executable, "-m", "hooklens", "serve", "--model", "unknown", "--port", "7899"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and (result.stdout + result.stderr).count("Unknown model 'unknown'") == 1
