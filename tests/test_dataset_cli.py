"""The command line: exit codes, sentences instead of tracebacks, and what the documentation's lines give."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import explainers
from dataset.shards import open_run
from hooklens import cli
from hooklens.progress import Progress, duration
from ui.share import record

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "assets" / "examples"
DATA = ROOT.parent / "shared" / "data" / "tiny-imagenet"


def hooklens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str]:
    """Exit code and what was printed."""
    monkeypatch.setattr(sys, "argv", ["hooklens", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    return int(end.value.code or 0), said.out + said.err


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("HOOKLENS_OFFLINE", raising=False)
    monkeypatch.setattr(cli, "_keep_freed_memory", lambda: None)  # it would hold for all tests of this process
    return lambda *arguments: hooklens(monkeypatch, capsys, *arguments)


def test_explain_and_go_on(ask, tmp_path):
    code, said = ask("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4, "--workers", 0)
    assert code == 0 and "4 pictures in" in said and "a second" in said
    assert open_run(tmp_path / "run").table["path"].to_pylist() == ["alp.jpg", "brushes.jpg", "cat.jpg", "coffee.jpg"]
    code, said = ask("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4)
    assert code == 0 and "all were there before" in said
    code, said = ask("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 4, "--method", "hires_cam")
    assert code == 1 and "method: 'grad_cam' there, 'hires_cam' now" in said


def test_pictures_that_cannot_be_read_are_told_by_the_exit_code(ask, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "dog.jpg").write_bytes((EXAMPLES / "dog.jpg").read_bytes())
    (tmp_path / "a" / "page.png").write_text("<html>")
    code, said = ask("explain", tmp_path / "a", "--out", tmp_path / "run")
    assert code == 3 and "1 could not be read; the column error says why" in said


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((), 2, "Missing argument"),
        (("nowhere", "--out", "run"), 1, "nowhere"),
        ((EXAMPLES, "--out", "run", "--method", "gradcam"), 1, "There is no method 'gradcam'.*grad_cam"),
        ((EXAMPLES, "--out", "run", "--model", "resnet5"), 1, "resnet5"),
        ((EXAMPLES, "--out", "run", "--model", "resnet50", "--offline"), 1, "ResNet-50 is not on this machine"),
        ((EXAMPLES, "--out", "run", "--layer", "nowhere"), 1, "nowhere"),
        ((EXAMPLES, "--out", "/dev/null/run"), 1, "cannot be written to"),
        ((EXAMPLES, "--out", "run", "--engine", "spark"), 2, "'spark' is no engine"),
        ((EXAMPLES, "--out", "run", "--option", "samples"), 2, "'samples' is no option. Give name=value"),
        ((EXAMPLES, "--out", "run", "--size", "big"), 2, "'big' is no size"),
        ((EXAMPLES, "--out", "run", "--device", "cuda:7"), 1, "cuda:7"),
    ],
)
def test_refusals_are_one_sentence_and_leave_nothing(arguments, code, sentence, ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, said = ask("explain", *arguments)
    assert found == code and re.search(sentence, said, re.DOTALL), said
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_lists_help_and_the_page(ask, monkeypatch):
    assert "efficientnet_lite0" in ask("models")[1]
    assert ask("--version") == (0, f"{record.version()}\n")
    code, said = ask("methods")
    assert code == 0 and "grad_cam " in said and "feature_maps" not in said
    code, said = ask("--help")
    assert code == 0 and all(name in said for name in ("explain", "report", "evaluate", "replay", "serve"))
    assert "\n      hooklens explain photographs/ --out run\n" in ask("explain", "--help")[1]
    called = []
    monkeypatch.setattr("app.main", called.append)
    ask("serve", "--port", 7861, "--offline")
    assert called == [["--port", "7861", "--offline"]]


def test_evaluate_stands_beside_the_controls(ask, tmp_path):
    ask("explain", EXAMPLES, "--out", tmp_path / "run", "--workers", 0)
    code, said = ask("evaluate", tmp_path / "run", "--pictures", 5, "--steps", 3, "--precision", "float32")
    assert code == 0 and re.search(r"Insertion 0\.\d+ ± 0\.\d+ over 5 images: .*random", said), said
    assert (tmp_path / "run" / "evaluation.json").is_file() and "Of 5 pictures" in said
    code, said = ask("evaluate", tmp_path / "run", "--metrics", "noise_stability")
    assert code == 1 and "stored maps do not tell" in said
    assert ask("evaluate", tmp_path)[0] == 1


def test_an_evaluation_is_the_librarys_own(tmp_path, ask):
    """The same pictures and stored maps, in one call of `explainers.evaluate`."""
    import torch
    from PIL import Image

    from dataset.past.again import Past
    from dataset.past.evaluation import evaluate
    from dataset.rows import map_of
    from models import load_model
    from ui.serving.uploads import open_picture

    ask("explain", EXAMPLES, "--out", tmp_path, "--limit", 6, "--workers", 0)
    past = Past(open_run(tmp_path), open_picture)
    found = evaluate(past, pictures=6, metrics=["deletion"], steps=3, precision="float32")
    rows, model = past.finished.table.to_pylist(), load_model("efficientnet_lite0")
    images = torch.cat([model.prepare(Image.open(EXAMPLES / row["path"])) for row in rows])
    maps = torch.stack([torch.from_numpy(map_of(row)) for row in rows])
    target = [row["target_index"] for row in rows]
    own = explainers.evaluate(
        model.network, images, maps, target=target, metrics="deletion", steps=3, precision="float32"
    )
    assert found["metrics"]["deletion"]["mean"] == pytest.approx(float(own.values["deletion"].mean()), rel=1e-4)
    beside = own.controls["deletion"]["random"].mean()
    assert found["metrics"]["deletion"]["controls"]["random"]["mean"] == pytest.approx(float(beside), rel=1e-4)


def test_a_report_with_masks(ask, tmp_path):
    from PIL import Image, ImageDraw

    ask("explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 2, "--workers", 0)
    whole = Image.new("L", (64, 64), 255)
    whole.save(tmp_path / "white.png")
    code, said = ask("report", tmp_path / "run", "--out", tmp_path / "a.html", "--mask", tmp_path / "white.png")
    assert code == 0 and "Open it in a browser" in said and "100% of the relevance" in (tmp_path / "a.html").read_text()
    (tmp_path / "masks").mkdir()
    ImageDraw.Draw(whole).rectangle((0, 0, 63, 61), fill=0)
    whole.save(tmp_path / "masks" / "alp.png")
    Image.new("L", (64, 64)).save(tmp_path / "masks" / "brushes.png")
    assert ask("report", tmp_path / "run", "--out", tmp_path / "b.html", "--mask", tmp_path / "masks")[0] == 0
    assert "100% of the relevance" not in (tmp_path / "b.html").read_text()
    code, said = ask("report", tmp_path / "run", "--out", tmp_path / "c.html", "--mask", ROOT / "README.md")
    assert code == 1 and "is no mask" in said and not (tmp_path / "c.html").exists()


def test_progress_knows_the_speed_of_new_pictures(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("explained") as progress:
        for done in (40, 60, 80, 100):
            progress(done, 100)
            now[0] += 11
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["explained 60 of 100, 1.82 a second, 22 s left", "explained 80 of 100, 1.82 a second, 11 s left",
                     "explained 100 of 100"]  # fmt: skip
    assert [duration(seconds) for seconds in (7, 600, 12_000)] == ["7 s", "10 min", "3 h 20 min"]


READERS = {"duckdb": "duckdb", "pandas": "pandas", "polars": "polars", "load_dataset": "datasets"}


@pytest.mark.parametrize("reader", READERS)
def test_the_lines_of_the_documentation_read_a_run(reader, ask, tmp_path, monkeypatch):
    pytest.importorskip(READERS[reader])
    text = (ROOT / "docs" / "data_sets.md").read_text(encoding="utf-8")
    block = next(code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if reader in code)
    ask("explain", EXAMPLES, "--out", tmp_path / "run", "--workers", 0, "--limit", 5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    names: dict[str, object] = {}
    exec(block, names)
    assert names["paths"] == ["alp.jpg", "brushes.jpg", "cat.jpg", "coffee.jpg", "dog.jpg"]


def test_a_network_of_ones_own_is_found_again(ask, tmp_path):
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
    code, said = ask(
        "explain", EXAMPLES, "--out", tmp_path / "run", "--limit", 2, *own, "--weights", tmp_path / "w.pth"
    )
    assert code == 0, said
    code, said = ask("evaluate", tmp_path / "run", "--steps", 2, "--precision", "float32")
    assert code == 0 and "Of 2 pictures" in said, said


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Pictures for half a minute."""
    (tmp_path / "many").mkdir()
    for k in range(400):
        (tmp_path / "many" / f"{k}.jpg").symlink_to(EXAMPLES / "coffee.jpg")
    return tmp_path / "many"


def wait_for_rows(process: subprocess.Popen[bytes], folder: Path) -> None:
    while not list(folder.glob("work/*.arrow")):
        assert process.poll() is None
        time.sleep(0.05)


def marked(mark: str) -> list[str]:
    """Processes whose environment holds this."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_killed_run_leaves_no_process_behind(many, tmp_path):
    mark = f"HOOKLENS_TEST={tmp_path}"
    command = [sys.executable, "-m", "hooklens", "explain", str(many), "--out", str(tmp_path / "run"), "--workers", "2"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "HOOKLENS_TEST": str(tmp_path)})
    wait_for_rows(process, tmp_path / "run")
    assert len(marked(mark)) > 2
    process.kill()
    process.wait()
    end = time.monotonic() + 30
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.2)
    assert marked(mark) == []


def test_control_c_keeps_what_is_done(many, tmp_path):
    """As in a terminal, where every process of the command gets the signal."""
    command = [sys.executable, "-m", "hooklens", "explain", many, "--out", tmp_path / "run"]
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen(
            [*map(str, command), "--workers", "1"],
            cwd=ROOT,
            start_new_session=True,
            stderr=said,
            # Where the tests run in the background of a shell, Ctrl+C is ignored by all that they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    wait_for_rows(process, tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == cli.Exit.STOPPED == 130
    text = (tmp_path / "said").read_text()
    assert "Stopped. What is done is kept" in text and "Traceback" not in text
    assert list((tmp_path / "run" / "work").glob("*.arrow"))


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="no Tiny ImageNet here")
def test_a_thousand_pictures_killed_three_times_are_the_rows_of_an_undisturbed_run(tmp_path):
    """With the default network and worker processes, killed outright at random."""
    subprocess.run(["tar", "-xzf", DATA / "val.tar.gz", "-C", tmp_path], check=True)
    command = [sys.executable, "-m", "hooklens", "explain", tmp_path / "val", "--limit", "1000", "--batch-size", "8"]
    subprocess.run([*command, "--out", tmp_path / "whole"], cwd=ROOT, check=True)
    draw = random.Random(time.time_ns())
    for _ in range(3):
        process = subprocess.Popen([*command, "--out", tmp_path / "killed"], cwd=ROOT, start_new_session=True)
        time.sleep(draw.uniform(5, 12))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*command, "--out", tmp_path / "killed"], cwd=ROOT, check=True)
    one, other = (open_run(tmp_path / name).table.drop_columns(["seconds"]) for name in ("whole", "killed"))
    assert len(one) == 1000 and one.equals(other)


def test_every_option_is_told(ask):
    said = ask("explain", "--help")[1]
    assert all(
        f"--{name}" in said for name in ("limit", "where", "workers", "batch-size", "precision", "seed", "engine")
    )
