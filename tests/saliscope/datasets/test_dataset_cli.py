"""The command line: exit codes, messages instead of tracebacks, and the examples in the documentation."""

from __future__ import annotations

import contextlib
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import explainers
from saliscope import __version__
from saliscope.cli import commands, serving
from saliscope.cli.progress import Progress, duration
from saliscope.datasets.shards import open_run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "assets" / "examples"
DATA = ROOT.parent / "shared" / "data" / "tiny-imagenet"


def saliscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    monkeypatch.setattr(sys, "argv", ["saliscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        commands.main()
    output = capsys.readouterr()
    assert "Traceback" not in output.err + output.out
    return int(end.value.code or 0), output.out + output.err


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `saliscope explain` on three examples, for tests that copy it."""
    out = tmp_path_factory.mktemp("explained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "_keep_freed_memory", lambda: None)
        patch.setattr(
            sys, "argv", ["saliscope", "explain", str(EXAMPLES), "--out", str(out), *"--limit 3 --workers 0".split()]
        )
        with pytest.raises(SystemExit) as end:
            commands.main()
    assert not end.value.code
    return out


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("SALISCOPE_OFFLINE", raising=False)
    monkeypatch.setattr(commands, "_keep_freed_memory", lambda: None)  # it would affect all tests in this process
    return lambda *arguments: saliscope(monkeypatch, capsys, *arguments)


def test_explain_and_resume(command, tmp_path):
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4, "--workers", 0)
    assert code == 0 and "4 images in" in output and "per second" in output
    assert open_run(tmp_path / "run").table["path"].to_pylist() == ["alp.jpg", "brushes.jpg", "cat.jpg", "coffee.jpg"]
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4)
    assert code == 0 and "the run was already finished" in output
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4, "--method", "hires_cam")
    assert code == 1 and "method: 'grad_cam' in the folder, 'hires_cam' now" in output


def test_unreadable_images_set_the_exit_code(command, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "dog.jpg").write_bytes((EXAMPLES / "dog.jpg").read_bytes())
    (tmp_path / "a" / "page.png").write_text("<html>")
    code, output = command("explain", tmp_path / "a", "--out", tmp_path / "run")
    assert code == 3 and "1 image could not be read; see the column error" in output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "Missing argument"),
        (("nowhere", "--out", "run"), 1, "nowhere"),
        ((EXAMPLES, "--out", "run", "--method", "gradcam"), 1, "Unknown method 'gradcam'.*grad_cam"),
        ((EXAMPLES, "--out", "run", "--model", "resnet5"), 1, "resnet5"),
        ((EXAMPLES, "--out", "run", "--model", "resnet50", "--offline"), 1, "ResNet-50 is not in the local cache"),
        ((EXAMPLES, "--out", "run", "--layer", "nowhere"), 1, "nowhere"),
        ((EXAMPLES, "--out", "/dev/null/run"), 1, "Cannot write to"),
        ((EXAMPLES, "--out", "run", "--engine", "spark"), 2, "Unknown engine 'spark'"),
        ((EXAMPLES, "--out", "run", "--option", "samples"), 2, "'samples' is not an option. Use name=value"),
        ((EXAMPLES, "--out", "run", "--size", "big"), 2, "'big' is not a size"),
        ((EXAMPLES, "--out", "run", "--device", "cuda:7"), 1, "cuda:7"),
    ],
)
def test_errors_are_messages_and_leave_no_files(arguments, code, message, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, output = command("explain", *arguments)
    assert found == code and re.search(message, output, re.DOTALL), output
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_lists_help_and_serve(command, monkeypatch):
    assert "efficientnet_lite0" in command("models")[1]
    assert command("--version") == (0, f"{__version__}\n")
    code, output = command("methods")
    assert code == 0 and "grad_cam " in output and "feature_maps" not in output
    code, output = command("--help")
    assert code == 0 and all(name in output for name in ("explain", "report", "evaluate", "replay", "serve"))
    assert "\n      saliscope explain photos/ --out run\n" in command("explain", "--help")[1]
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(serving, "check_address", lambda *address: None)
    monkeypatch.setattr(serving, "serve", lambda *arguments: calls.append(arguments))
    assert command("serve", "--port", 7861, "--offline")[0] == 0
    assert calls == [("auto", {}, None, 7861, None, "auto", False, False, "text")]


def test_models_offline_offer_no_download(command, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    code, output = command("models")
    assert code == 0 and re.search(r"^resnet50 .* 10[23] MB download$", output, re.M) and "offline" not in output
    online = [line.split()[0] for line in output.splitlines()]
    code, output = command("models", "--offline")
    assert code == 0 and re.search(r"^resnet50 .* not downloaded \(offline\)$", output, re.M)
    assert not re.search(r"download\b", output) and re.search(r"^efficientnet_lite0 .* available$", output, re.M)
    assert [line.split()[0] for line in output.splitlines()] == online, "their networks accept --weights"


def test_app_py_is_serve(monkeypatch):
    """`python app.py OPTIONS` runs `saliscope serve OPTIONS`."""
    calls = []
    monkeypatch.setattr(commands, "main", calls.append)
    for arguments in (["app.py", "--port", "7861"], ["app.py"]):
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
    assert calls == [["serve", "--port", "7861"], ["serve"]]


def test_evaluate_compares_with_control_maps(command, explained, tmp_path):
    shutil.copytree(explained, tmp_path / "run")
    code, output = command("evaluate", tmp_path / "run", "--images", 3, "--steps", 3, "--precision", "float32")
    assert code == 0 and re.search(r"Insertion 0\.\d+ ± 0\.\d+ over 3 images: .*random", output), output
    assert (tmp_path / "run" / "evaluation.json").is_file() and "Evaluated 3 images" in output
    code, output = command("evaluate", tmp_path / "run", "--metrics", "noise_stability")
    assert code == 1 and "stored maps are not sufficient" in output
    assert command("evaluate", tmp_path)[0] == 1


def test_evaluation_matches_the_library(explained):
    """Oracle: one call of `explainers.evaluate` with the same images and maps."""
    import torch
    from PIL import Image

    from saliscope.datasets.finished.evaluation import evaluate
    from saliscope.datasets.finished.finished_run import FinishedRun
    from saliscope.datasets.rows import map_of
    from saliscope.images.uploads import open_image
    from saliscope.zoo import load_model

    run = FinishedRun(open_run(explained), open_image)
    found = evaluate(run, images=3, metrics=["deletion"], steps=3, precision="float32")
    rows, model = run.data.table.to_pylist(), load_model("efficientnet_lite0")
    images = torch.cat([model.prepare(Image.open(EXAMPLES / row["path"])) for row in rows])
    maps = torch.stack([torch.from_numpy(map_of(row)) for row in rows])
    target = [row["target_index"] for row in rows]
    own = explainers.evaluate(
        model.network, images, maps, target=target, metrics="deletion", steps=3, precision="float32"
    )
    assert found["metrics"]["deletion"]["mean"] == pytest.approx(float(own.values["deletion"].mean()), rel=1e-4)
    control = own.controls["deletion"]["random"].mean()
    assert found["metrics"]["deletion"]["controls"]["random"]["mean"] == pytest.approx(float(control), rel=1e-4)


def test_a_report_with_masks(command, tmp_path):
    from PIL import Image, ImageDraw

    command("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 2, "--workers", 0)
    whole = Image.new("L", (64, 64), 255)
    whole.save(tmp_path / "white.png")
    code, output = command("report", tmp_path / "run", "--out", tmp_path / "a.html", "--mask", tmp_path / "white.png")
    assert (
        code == 0 and "Open it in a browser" in output and "100% of the relevance" in (tmp_path / "a.html").read_text()
    )
    (tmp_path / "masks").mkdir()
    ImageDraw.Draw(whole).rectangle((0, 0, 63, 61), fill=0)
    whole.save(tmp_path / "masks" / "alp.png")
    Image.new("L", (64, 64)).save(tmp_path / "masks" / "brushes.png")
    assert command("report", tmp_path / "run", "--out", tmp_path / "b.html", "--mask", tmp_path / "masks")[0] == 0
    assert "100% of the relevance" not in (tmp_path / "b.html").read_text()
    code, output = command("report", tmp_path / "run", "--out", tmp_path / "c.html", "--mask", ROOT / "README.md")
    assert code == 1 and "Cannot read the mask" in output and not (tmp_path / "c.html").exists()


def test_progress_measures_the_speed_of_new_images(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("explained") as progress:
        for done in (40, 60, 80, 100):
            progress(done, 100)
            now[0] += 31
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "explained 60 of 100, 0.645 images/s, 62 s left",
        "explained 80 of 100, 0.645 images/s, 31 s left",
        "explained 100 of 100",
    ]
    assert [duration(seconds) for seconds in (7, 600, 12_000)] == ["7 s", "10 min", "3 h 20 min"]


def test_custom_network_is_loaded_again(command, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torchvision\n\ndef build():\n    return torchvision.models.squeezenet1_1(num_classes=2)\n"
    )
    own = (
        "--model",
        f"{tmp_path / 'mine.py'}:build",
        "--mean",
        "0.4,0.4,0.4",
        "--std",
        "0.2,0.2,0.2",
        "--size",
        "64x96",
    )
    import torch

    torch.manual_seed(0)
    from torchvision.models import squeezenet1_1

    torch.save(squeezenet1_1(num_classes=2).state_dict(), tmp_path / "w.pth")
    code, output = command(
        "explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 2, *own, "--weights", tmp_path / "w.pth"
    )
    assert code == 0, output
    code, output = command("evaluate", tmp_path / "run", "--steps", 2, "--precision", "float32")
    assert code == 0 and "Evaluated 2 images" in output, output


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Write images that take half a minute."""
    (tmp_path / "many").mkdir()
    for k in range(400):
        (tmp_path / "many" / f"{k}.jpg").symlink_to(EXAMPLES / "coffee.jpg")
    return tmp_path / "many"


def wait_for_rows(process: subprocess.Popen[bytes], folder: Path) -> None:
    while not list(folder.glob("work/*.arrow")):
        assert process.poll() is None
        time.sleep(0.05)


def marked(mark: str) -> list[str]:
    """Return the processes with this text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_killed_run_leaves_no_processes(many, tmp_path):
    mark = f"SALISCOPE_TEST={tmp_path}"
    arguments = [
        sys.executable,
        "-m",
        "saliscope",
        "explain",
        str(many),
        "--out",
        str(tmp_path / "run"),
        "--workers",
        "2",
    ]
    process = subprocess.Popen(arguments, cwd=ROOT, env={**os.environ, "SALISCOPE_TEST": str(tmp_path)})
    wait_for_rows(process, tmp_path / "run")
    assert len(marked(mark)) > 2
    process.kill()
    process.wait()
    end = time.monotonic() + 30
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.2)
    assert marked(mark) == []


@pytest.mark.slow
def test_control_c_keeps_finished_batches(many, tmp_path):
    """As in a terminal, every process of the command receives the signal."""
    arguments = [sys.executable, "-m", "saliscope", "explain", many, "--out", tmp_path / "run"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [*map(str, arguments), "--workers", "1"],
            cwd=ROOT,
            start_new_session=True,
            stderr=log,
            # If the tests run in the background of a shell, Ctrl+C is ignored by the processes that they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    wait_for_rows(process, tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == commands.Exit.INTERRUPTED == 130
    text = (tmp_path / "log").read_text()
    assert "Interrupted. Finished batches are kept" in text and "Traceback" not in text
    assert list((tmp_path / "run" / "work").glob("*.arrow"))


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="Tiny ImageNet is not available")
def test_thousand_images_after_three_kills(tmp_path):
    """A run that was killed at random times has the same rows as an uninterrupted run, with worker processes."""
    subprocess.run(["tar", "-xzf", DATA / "val.tar.gz", "-C", tmp_path], check=True)
    arguments = [sys.executable, "-m", "saliscope", "explain", tmp_path / "val", "--limit", "1000", "--batch-size", "8"]
    subprocess.run([*arguments, "--out", tmp_path / "whole"], cwd=ROOT, check=True)
    generator = random.Random(time.time_ns())
    for _ in range(3):
        process = subprocess.Popen([*arguments, "--out", tmp_path / "killed"], cwd=ROOT, start_new_session=True)
        time.sleep(generator.uniform(5, 12))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*arguments, "--out", tmp_path / "killed"], cwd=ROOT, check=True)
    one, other = (open_run(tmp_path / name).table.drop_columns(["seconds"]) for name in ("whole", "killed"))
    assert len(one) == 1000 and one.equals(other)


def test_help_lists_every_option(command):
    output = command("explain", "--help")[1]
    assert all(
        f"--{name}" in output for name in ("limit", "where", "workers", "batch-size", "precision", "seed", "engine")
    )
