"""The options of `saliscope serve`: invalid ports, hosts and models are refused before the page is served."""

from __future__ import annotations

import runpy
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from saliscope.__main__ import main
from saliscope.cli import commands
from saliscope.session import model_cache
from saliscope.zoo import catalog

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "assets" / "examples"


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


def test_an_unknown_model_is_reported_once_and_before_the_page_is_built(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "saliscope.page.build", None)  # an import fails
    for name, value in {"ready": threading.Event(), "_failure": "", "_errors": [], "_requested": "auto"}.items():
        monkeypatch.setattr(model_cache, name, value)
    with pytest.raises(SystemExit) as end:
        main(["serve", "--model", "unknown"])
    printed = capfd.readouterr()
    assert end.value.code == 1 and (printed.out + printed.err).count("Unknown model 'unknown'") == 1


@pytest.mark.parametrize("name", ["wrong.pt", "missing.pt"])
@pytest.mark.parametrize("model", [(), ("--model", "efficientnet_lite0")], ids=["no model", "model"])
def test_weights_that_cannot_be_used_give_one_exit_code(
    model: tuple[str, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """For `serve`, for `app.py`, and for the other commands, whether the model or the file is the problem."""
    (tmp_path / "wrong.pt").write_bytes(b"garbage")
    monkeypatch.delenv("SALISCOPE_MODEL", raising=False)
    monkeypatch.setitem(sys.modules, "saliscope.page.build", None)  # an import fails
    monkeypatch.setattr(commands, "_keep_freed_memory", lambda: None)  # it would affect all tests in this process
    monkeypatch.setattr(catalog, "_ADDED", {})
    given = ["--weights", str(tmp_path / name), *model]
    expected = f"{name} " if model else "--weights needs --model. Name the model"
    codes = []
    for arguments in (["serve"], [], ["explain", str(EXAMPLES), "--out", str(tmp_path / "run")]):
        for key, value in {"ready": threading.Event(), "_failure": "", "_errors": [], "_requested": "auto"}.items():
            monkeypatch.setattr(model_cache, key, value)
        with pytest.raises(SystemExit) as end:
            if arguments:
                main([*arguments, *given])
            else:
                monkeypatch.setattr(sys, "argv", ["app.py", *given])
                runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
        codes.append(end.value.code)
        printed = capfd.readouterr()
        assert expected in printed.out + printed.err and "Traceback" not in printed.err
    assert codes == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="The C library of Linux reports its pools")
def test_all_threads_of_the_page_share_one_pool_of_memory(tmp_path: Path) -> None:
    code = f"""
from saliscope.page.serving import gradio_setup
import ctypes, threading
threads = [threading.Thread(target=lambda: [bytes(100_000) for _ in range(50)]) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(b"{tmp_path}/pools.xml", b"w"))
library.malloc_info(0, file)
library.fclose(file)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "pools.xml").read_text().count("<heap ") == 1
