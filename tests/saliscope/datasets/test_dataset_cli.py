"""The command line: exit codes, messages instead of tracebacks, and the examples in the documentation."""

from __future__ import annotations

import contextlib
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import explainers
from saliscope import __version__
from saliscope.cli import commands, serving
from saliscope.cli.progress import LOG
from saliscope.datasets.shards import open_run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "assets" / "examples"


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
    arguments = ["saliscope", "explain", str(EXAMPLES), "--out", str(out), *"--limit 3 --workers 0".split()]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(commands, "_keep_freed_memory", lambda: None)
        patch.setattr(sys, "argv", arguments)
        commands.main()
    assert not end.value.code
    return out


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("SALISCOPE_OFFLINE", raising=False)
    monkeypatch.setattr(commands, "_keep_freed_memory", lambda: None)  # it would affect all tests in this process
    yield lambda *arguments: saliscope(monkeypatch, capsys, *arguments)
    LOG.quiet, LOG.format = False, "text"


def test_explain_and_resume(command, tmp_path):
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4, "--workers", 0)
    assert code == 0 and "4 images in" in output and "per second" in output
    assert open_run(tmp_path / "run").table["path"].to_pylist() == ["alp.jpg", "brushes.jpg", "cat.jpg", "coffee.jpg"]
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4)
    assert code == 0 and "the run was already finished" in output
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4, "--method", "hires_cam")
    assert code == 1 and "method: 'grad_cam' in the folder, 'hires_cam' now" in output


def test_errors_are_messages_and_leave_no_files(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, code, message in (
        ("", 2, "Missing argument"),
        ("nowhere --out run", 1, "nowhere"),
        ("{} --out run --method gradcam", 1, "Unknown method 'gradcam'.*grad_cam"),
        ("{} --out run --model resnet50 --offline", 1, "ResNet-50 is not in the local cache"),
        ("{} --out run --layer nowhere", 1, "nowhere"),
        ("{} --out /dev/null/run", 1, "Cannot write to"),
        ("{} --out run --engine spark", 2, "Unknown engine 'spark'"),
        ("{} --out run --option samples", 2, "'samples' is not an option. Use name=value"),
        ("{} --out run --size big", 2, "'big' is not a size"),
        ("{} --out run --device cuda:7", 1, "cuda:7"),
    ):
        found, output = command("explain", *arguments.format(EXAMPLES).split())
        assert found == code and re.search(message, output, re.DOTALL), (arguments, output)
        assert not (tmp_path / "run").exists()


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


def test_a_report_with_masks(command, explained, tmp_path):
    from PIL import Image, ImageDraw

    def report(mask: Path) -> tuple[int, str, str]:
        page = tmp_path / f"{mask.name}.html"
        code, output = command("report", explained, "--out", page, "--mask", mask)
        return code, output, page.read_text("utf-8") if page.exists() else ""

    whole = Image.new("L", (64, 64), 255)
    whole.save(tmp_path / "white.png")
    code, output, text = report(tmp_path / "white.png")
    assert code == 0 and "Open it in a browser" in output and "100% of the relevance" in text
    (tmp_path / "masks").mkdir()
    ImageDraw.Draw(whole).rectangle((0, 0, 63, 61), fill=0)
    whole.save(tmp_path / "masks" / "alp.png")
    Image.new("L", (64, 64)).save(tmp_path / "masks" / "brushes.png")
    code, _, text = report(tmp_path / "masks")
    assert code == 0 and text and "100% of the relevance" not in text
    code, output, text = report(ROOT / "README.md")
    assert code == 1 and "Cannot read the mask" in output and not text


def test_custom_network_is_loaded_again(command, tmp_path):
    import torch
    from torchvision.models import squeezenet1_1

    code = "import torchvision\n\ndef build():\n    return torchvision.models.squeezenet1_1(num_classes=2)\n"
    (tmp_path / "mine.py").write_text(code)
    torch.manual_seed(0)
    torch.save(squeezenet1_1(num_classes=2).state_dict(), tmp_path / "w.pth")
    own = f"--model {tmp_path}/mine.py:build --weights {tmp_path}/w.pth --size 64x96".split()
    own += "--mean 0.4,0.4,0.4 --std 0.2,0.2,0.2 --limit 2".split()
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", *own)
    assert code == 0, output
    code, output = command("evaluate", tmp_path / "run", "--steps", 2, "--precision", "float32")
    assert code == 0 and "Evaluated 2 images" in output, output


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_run_after_three_kills_is_that_without(tmp_path):
    """With worker processes, which end when their parent is killed."""
    (tmp_path / "many").mkdir()
    for k in range(300):
        (tmp_path / "many" / f"{k}.jpg").symlink_to(sorted(EXAMPLES.glob("*.jpg"))[k % 9])
    arguments = [sys.executable, "-m", "saliscope", "explain", tmp_path / "many", "--batch-size", "8", "--workers", "2"]
    subprocess.run([*arguments, "--out", tmp_path / "whole"], cwd=ROOT, check=True)
    generator, mark = random.Random(time.time_ns()), f"SALISCOPE_TEST={tmp_path}"

    def marked() -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                found += [path.parent.name] if mark.encode() in path.read_bytes() else []
        return found

    for _ in range(3):
        variables = {**os.environ, "SALISCOPE_TEST": str(tmp_path)}
        process = subprocess.Popen([*arguments, "--out", tmp_path / "killed"], cwd=ROOT, env=variables)
        time.sleep(generator.uniform(5, 12))
        process.kill()
        process.wait()
        end = time.monotonic() + 30
        while marked() and time.monotonic() < end:
            time.sleep(0.2)
        assert marked() == []
    subprocess.run([*arguments, "--out", tmp_path / "killed"], cwd=ROOT, check=True)
    one, other = (open_run(tmp_path / name).table.drop_columns(["seconds"]) for name in ("whole", "killed"))
    assert len(one) == 300 and one.equals(other)
