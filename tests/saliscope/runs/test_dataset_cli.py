"""The command line: exit codes, messages instead of tracebacks, and the examples in the documentation."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw
from torchvision.models import squeezenet1_1

import explainers
from saliscope import __version__
from saliscope.cli import commands
from saliscope.cli.progress import LOG
from saliscope.runs.finished_run import FILE
from saliscope.runs.rows import map_of
from saliscope.runs.shards import open_run
from saliscope.zoo import load_model

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "assets" / "examples"
SMALL = ("--model", "efficientnet_lite0?size=64")
"""The built-in network with a smaller input."""
Command = Callable[..., tuple[int, str]]


def call(*arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as end, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        commands.main([*map(str, arguments)])
    LOG.quiet, LOG.format = False, "text"
    return int(end.value.code or 0), out.getvalue(), errors.getvalue()


def saliscope(*arguments: object) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    code, *output = call(*arguments)
    assert "Traceback" not in "".join(output)
    return code, "".join(output)


@pytest.fixture(scope="session")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `saliscope explain` on three examples, for tests that read or copy it."""
    out = tmp_path_factory.mktemp("explained") / "run"
    code, output = saliscope("explain", EXAMPLES, "--out", out, "--limit", 3, "--workers", 0, *SMALL)
    assert code == 0 and "3 images in" in output and "per second" in output
    return out


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    monkeypatch.delenv("SALISCOPE_OFFLINE", raising=False)
    monkeypatch.setattr(explainers, "keep_freed_memory", lambda: None)  # it would affect all tests in this process
    yield saliscope


ERRORS = (
    ("explain", 2, "Missing argument"),
    ("explain {} --out run --method d_rise", 1, "is for object detectors"),
    ("explain {} --out run --method smooth_grad --seed 5 --option seed=3", 1, "conflict"),
    ("explain {} --out run --model resnet50 --offline", 1, "ResNet-50 is not in the local cache"),
    ("explain {} --out /dev/null/run", 1, "Cannot write to"),
    ("explain {} --out run --engine spark", 2, "Unknown engine 'spark'"),
    ("explain {} --out run --engine ray --device cuda:1", 2, "Ray assigns the devices"),
    ("explain {} --out run --engine ray --min-workers 3 --workers 2", 2, "more than the maximum, workers 2"),
    ("explain {} --out run --min-workers 1", 2, "min_workers needs the engine ray"),
    ("explain {} --out run --option samples", 2, "'samples' is not an option. Use name=value"),
    ("explain {} --out run --size big", 2, "'big' is not a size"),
    ("explain {} --out run --device cuda:7", 1, "cuda:7"),
    ("report {run} --out folder", 2, "is a folder"),
    ("report {run} --out run --link foo", 2, "is not a URL"),
    ("report {run} --out run --mask nowhere.png", 1, "nowhere.png'. Pass a mask, or a folder of masks"),
    ("report {run} --out run --mask folder", 1, "None of the images of the run has a mask"),
    ("report {run} --out run --mask README.md", 1, "Cannot read the mask"),
    ("evaluate {run} --metrics noise_stability", 1, "stored maps are not sufficient"),
    ("evaluate {run} --metrics completeness_gap", 1, "needs the sum that the method guarantees"),
    *(
        (f"{words} {kind} --out run", 1, message)
        for kind, message in (("folder", "contain a run"), ("unfinished", "is not finished"), ("no", "not found"))
        for words in ("report", "export", f"compare {kind}")
    ),
    ("evaluate folder", 1, "contain a run"),
    ("serve --units folder", 1, "folder"),
    ("index {} --out run --layers haed", 1, "haed"),
    ("index {} --out run --effects catt", 1, "catt"),
)
"""Commands, their exit codes, and what their messages contain; {} are the examples, {run} is a finished run."""


def test_errors_are_messages_and_leave_no_files(command, explained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADIO_TEMP_DIR", "uploads")  # otherwise `serve` chooses a folder for the whole process
    (tmp_path / "folder").mkdir()
    (tmp_path / "README.md").write_text("no image")
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "settings.json").write_text("{}")
    for words, code, message in ERRORS:
        found, output = command(*words.format(EXAMPLES, run=explained).split())
        output = " ".join(output.replace("│", " ").split())
        assert found == code and re.search(message, output), (words, output)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "folder", "unfinished"], words
    assert not list((tmp_path / "folder").iterdir())


def test_images_that_are_gone_or_unreadable(command, tmp_path):
    pictures, run = tmp_path / "pictures", tmp_path / "run"
    pictures.mkdir()
    for name in "ab":
        Image.effect_noise((60, 50), 90).convert("RGB").save(pictures / f"{name}.png")
    explain = ("explain", pictures, *SMALL, "--workers", 0, "--out")
    assert command(*explain, run)[0] == 0
    (pictures / "a.png").write_bytes(b"no image")
    (pictures / "b.png").unlink()
    code, output = command("report", run, "--out", tmp_path / "report.html")
    assert code == 0 and "2 images of the run are not available anymore" in output
    assert command(*explain, tmp_path / "unreadable")[0] == 3
    code, output = command("evaluate", tmp_path / "unreadable")
    assert code == 1 and "could be read, so there is nothing to evaluate" in " ".join(output.split())


def test_lists_and_help(command):
    assert command("--version") == (0, f"{__version__}\n")
    code, output = command("methods")
    assert code == 0 and "grad_cam " in output and "feature_maps" not in output
    code, output = command("--help")
    assert code == 0 and all(name in output for name in ("explain", "report", "evaluate", "replay", "serve"))
    assert "\n      saliscope explain photos/ --out run\n" in command("explain", "--help")[1]


def test_evaluation_matches_the_library_and_its_controls(command, explained, tmp_path):
    """Oracle: one call of `explainers.evaluate` with the same images and maps."""
    shutil.copytree(explained, tmp_path / "run")
    options = ("--images", 3, "--steps", 3, "--precision", "float32", "--metrics", "deletion")
    code, output = command("evaluate", tmp_path / "run", *options)
    assert code == 0 and "Evaluated 3 images" in output
    assert re.search(r"Deletion 0\.\d+ ± 0\.\d+ over 3 images: .*random", output), output
    found = json.loads((tmp_path / "run" / FILE).read_text())["metrics"]["deletion"]
    rows, model = open_run(explained).table.to_pylist(), load_model(SMALL[1])
    images = torch.cat([model.prepare(Image.open(EXAMPLES / row["path"])) for row in rows])
    maps = torch.stack([torch.from_numpy(map_of(row)) for row in rows])
    target = [row["target_index"] for row in rows]
    own = explainers.evaluate(
        model.network, images, maps, target=target, metrics="deletion", steps=3, precision="float32"
    )
    assert found["mean"] == pytest.approx(float(own.values["deletion"].mean()), rel=1e-4)
    control = float(own.controls["deletion"]["random"].mean())
    assert found["controls"]["random"]["mean"] == pytest.approx(control, rel=1e-4)


def test_a_report_with_masks(command, explained, tmp_path):
    def share(mask: Path) -> str:
        page = tmp_path / f"{mask.name}.html"
        code, output = command("report", explained, "--out", page, "--mask", mask)
        assert code == 0 and "Open it in a browser" in output
        return re.search(r"In the given mask</th><td[^>]*>([^<]*)", page.read_text("utf-8"))[1]

    whole = Image.new("L", (64, 64), 255)
    whole.save(tmp_path / "white.png")
    assert share(tmp_path / "white.png") == "100%"
    (tmp_path / "masks").mkdir()
    ImageDraw.Draw(whole).rectangle((0, 0, 63, 61), fill=0)
    whole.save(tmp_path / "masks" / "alp.png")
    Image.new("L", (64, 64)).save(tmp_path / "masks" / "brushes.png")
    assert share(tmp_path / "masks") not in ("", "100%")


def test_custom_network_is_loaded_again(command, tmp_path):
    code = "import torchvision\n\ndef build():\n    return torchvision.models.squeezenet1_1(num_classes=2)\n"
    (tmp_path / "mine.py").write_text(code)
    torch.save(squeezenet1_1(num_classes=2).state_dict(), tmp_path / "w.pth")
    own = f"--model {tmp_path}/mine.py:build --weights {tmp_path}/w.pth --size 64x96".split()
    own += "--mean 0.4,0.4,0.4 --std 0.2,0.2,0.2 --limit 2 --workers 0".split()
    assert command("explain", EXAMPLES, "--out", tmp_path / "run", *own)[0] == 0
    code, output = command("evaluate", tmp_path / "run", "--steps", 2, "--precision", "float32")
    assert code == 0 and "Evaluated 2 images" in output, output
