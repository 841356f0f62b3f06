"""What `saliscope serve` refuses before the page is served, and the models that it lists."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import explainers
from saliscope.__main__ import main
from saliscope.errors import Refused
from saliscope.page.agents.server import Agents
from saliscope.page.api import answers
from saliscope.page.operations.metrics import Monitoring
from saliscope.page.panel import parts
from saliscope.page.panel import settings as panel
from tests.saliscope.browser.conftest import QUIET
from tests.support.catalog import isolate_catalog

ROOT = Path(__file__).parents[3]


def refused(*arguments: str) -> int:
    """The exit code of a command that ends with an error."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert isinstance(end.value.code, int)
    return end.value.code


def test_an_unknown_model_is_reported_once_and_before_the_page_is_built() -> None:
    code = "import sys; sys.modules['saliscope.page.build'] = None; from saliscope.__main__ import main"
    command = [sys.executable, "-c", f"{code}; main(['serve', '--model', 'unknown'])"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | QUIET)
    assert done.returncode == 1 and (done.stdout + done.stderr).count("Unknown model 'unknown'") == 1


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
        assert refused(*arguments, "--weights", missing) == 1
        assert "--weights needs --model. Name the model" in "".join(capfd.readouterr())
    for weights in (missing, str(wrong)):
        assert refused(*explain, "--weights", weights, *lite) == 1
        printed = "".join(capfd.readouterr())
        assert f"{Path(weights).name} " in printed and "Traceback" not in printed
    printed = page.communicate(timeout=120)[1]
    assert page.returncode == 1 and printed.count("wrong.pt ") == 1 and "Traceback" not in printed


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, extra, part in (
        ("mcp.server.lowlevel", "mcp", Agents),
        ("prometheus_client", "monitoring", Monitoring),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(Refused, match=rf"needs the package {package[:3]}.*pip install \"saliscope\[{extra}\] @ "):
            part()


# The list of models


def test_offline_no_model_is_offered_as_a_download_and_usable_ones_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loaded: object
) -> None:
    """A list shows its first hundred names; a model of the owner's folder is after torchvision's without this order."""
    isolate_catalog(monkeypatch, tmp_path)
    (tmp_path / "own.py").write_text("from torch import nn\n\n\ndef build():\n    return nn.Identity()\n")
    monkeypatch.setenv("SALISCOPE_MODELS_DIR", str(tmp_path))

    def listed() -> dict[str, tuple[str, str]]:
        return {name: (label, columns[-1]) for label, name, columns in panel.list_models()[parts.MODEL]["names"]}

    states = [state for _, state in listed().values()]
    assert states[:2] == ["on disk", "on disk"] and set(states[2:]) == {"offline"}
    assert listed()["resnet50"][0].endswith("· not downloaded (offline)")
    found = {each["name"]: (each["cached"], each["offline"]) for each in answers.list_models()}
    assert found["efficientnet_lite0"] == (True, False) and found["resnet50"] == (False, True)
    monkeypatch.setenv("SALISCOPE_OFFLINE", "0")
    label, state = listed()["resnet50"]
    assert label.endswith("MB to download") and state == "download"
