"""The flags of `python app.py`: what cannot be is refused in a sentence, before the page is built."""

from __future__ import annotations

import socket

import pytest

import app


@pytest.mark.parametrize("port", ["0", "-5", "65536", "80000", "x"])
def test_a_port_is_a_number_that_there_is(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app.main(["--port", port])
    assert end.value.code == 2 and f"{port!r} is no port: give a number from 1 to 65535" in capsys.readouterr().err


def test_a_taken_port_is_told() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        port = door.getsockname()[1]
        with pytest.raises(SystemExit, match=f"--port: {port} is taken. Choose another"):
            app.main(["--port", str(port)])


@pytest.mark.parametrize("host", ["999.1.1.1", "203.0.113.7"])
def test_another_machines_address_is_told(host: str) -> None:
    with pytest.raises(SystemExit, match=f"this machine has no address '{host}'"):
        app.main(["--host", host])
