"""The commands that use runs: compare, export, layers, --dry-run, progress and logs."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import time

import pytest
import typer
from pyarrow import parquet as pq
from typer.testing import CliRunner

from saliscope.cli import commands, completion, serving
from saliscope.cli.progress import LOG, Progress
from saliscope.runs.formats import duration
from tests.saliscope.runs.test_dataset_cli import EXAMPLES, ROOT, command, explained

__all__ = ["command", "explained"]  # fixtures


def test_runs_are_compared_and_exported(command, explained, tmp_path):
    """Grad-CAM and HiRes-CAM of one network have equal predictions and similar maps."""
    other = tmp_path / "b"
    command("explain", EXAMPLES, "--out", other, "--limit", 3, "--method", "hires_cam", "--workers", 0)
    code, output = command("compare", explained, other, "--out", tmp_path / "c.html")
    assert code == 0 and "3 images in both runs; 0 only in A, 0 only in B." in output
    assert "Same prediction for 100% of 3 images." in output
    assert re.search(r"Maps of 3 images with the same prediction: mean rank correlation (0\.\d\d|1\.00)", output)
    assert len(pq.read_table(tmp_path / "c.parquet")) == 3 and "grad_cam" in (tmp_path / "c.html").read_text("utf-8")
    for code, messages in ((0, ("3 images in", "annotations.json")), (1, ("not an empty folder",))):
        found, output = command("export", explained, "--to", "coco", "--out", tmp_path / "coco")
        assert found == code and all(message in output for message in messages)


def test_a_dry_run_writes_nothing(command, tmp_path):
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--dry-run", "--batch-size", 2)
    assert code == 0 and not (tmp_path / "run").exists()
    assert re.search(r"9 images \(folder\), grad_cam of \w+, target predicted, batches of 2\.", output)
    assert re.search(r"Measured on \d images: [\d.]+ ms to read and [\d.]+ ms to explain each, [\d,]+ bytes", output)
    assert re.search(r"Estimate: \d+ s in one process, [\d.]+ images/s, [\d.]+ MB\.\nNothing was written\.", output)
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--dry-run", "--format", "json")
    plan = json.loads(output)
    assert list(plan) == documented()["explain --dry-run"]
    assert plan["images"] == 9 and plan["seconds"] > 0 and plan["bytes"] > 0
    assert command("explain", tmp_path / "no", "--out", tmp_path / "run", "--dry-run")[0] == 1


def call(*arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as end, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        commands.main([*map(str, arguments)])
    LOG.quiet, LOG.format = False, "text"
    return int(end.value.code or 0), out.getvalue(), errors.getvalue()


def documented() -> dict[str, list[str]]:
    """Return the keys of the JSON document of each command, in docs/reference/files.md."""
    page = (ROOT / "docs" / "reference" / "files.md").read_text("utf-8")
    text = page.partition("## For scripts")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \|$", text, re.M)
    return {name: re.findall(r"`(\w+)`", keys) for name, keys in rows}


def test_every_command_prints_one_json_document_with_the_documented_keys(command, explained, tmp_path):
    """Also if the user's network prints. Without a format, `--quiet` prints nothing."""
    (tmp_path / "chatty.py").write_text(
        "import torch, torchvision\n\ndef build():\n    print('hello')\n    torch.manual_seed(0)\n"
        "    return torchvision.models.squeezenet1_1()\n"
    )
    run = shutil.copytree(explained, tmp_path / "run")
    chatty = ("--model", f"{tmp_path}/chatty.py:build", "--size", 64, "--workers", 0, "--limit", 2)
    lines = {
        "explain": (EXAMPLES, "--out", tmp_path / "chatty", *chatty),
        "report": (run, "--out", tmp_path / "r.html"),
        "evaluate": (run, "--images", 2, "--steps", 2, "--metrics", "deletion"),
        "compare": (run, explained, "--out", tmp_path / "c.html"),
        "export": (run, "--to", "hf", "--out", tmp_path / "hf"),
        "index": (EXAMPLES, "--out", tmp_path / "units", "--layers", "stages.4", "--limit", 2, "--workers", 0),
        "layers": ("efficientnet_lite0",),
        "models": (),
        "methods": (),
    }
    keys = documented()
    assert set(keys) == {*lines, "explain --dry-run", "replay"}
    for name, arguments in lines.items():
        code, out, errors = call(name, *arguments, "--format", "json")
        found = json.loads(out)
        assert code == 0, (name, errors)
        assert list(found[0] if isinstance(found, list) else found) == keys[name], name
        assert all(line == "hello" or json.loads(line) for line in errors.splitlines()), name
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
        code, out, errors = call(name, *arguments, "--quiet")
        assert (code, (out + errors).replace("hello\n", "")) == (0, ""), name


def test_the_json_of_a_run_has_its_numbers(command, tmp_path):
    explain = ("explain", EXAMPLES, "--out", tmp_path / "b", "--limit", 2, "--workers", 0, "--format=json")
    code, out, errors = call(*explain)
    found, progress = json.loads(out), json.loads(errors)
    assert code == 0 and found["folder"] == str(tmp_path / "b") and found["settings"]["method"] == "grad_cam"
    assert found["counts"]["images"] == found["new"] == 2 and found["accuracy"] is None
    assert (progress["event"], progress["done"], progress["total"], progress["errors"]) == ("progress", 2, 2, 0)
    code, out, errors = call(*explain, "-q")
    assert code == 0 and errors == "" and json.loads(out)["new"] == 0, "the result is printed although it is quiet"


def test_errors_are_one_json_object(command, tmp_path):
    """Also wrong usage, whose option may be anywhere. As text, they are printed although the command is quiet."""
    for code, words in (
        (1, "report {}/no --format json --quiet"),
        (1, "report {}/no --format=json"),
        (1, "replay {}/no.zip --format json"),
        (1, "layers no_such_model --format json"),
        (2, "explain --format json"),
        (2, "explain {} --out run --format json --batch-size many"),
        (2, "models --format json --unknown"),
        (2, "export {} --out x --to yolo --format json"),
    ):
        found, out, errors = call(*words.format(tmp_path).split())
        error = json.loads(errors)
        assert found == code and out == "" and error["exit"] == code and len(error["error"]) > 10, words
    code, out, errors = call("report", tmp_path / "no", "--quiet")
    assert code == 1 and out == "" and "Folder not found" in errors


def test_a_quiet_page_does_not_print_its_address(command, monkeypatch):
    monkeypatch.setattr(serving, "check_address", lambda *address: None)
    monkeypatch.setattr(serving, "serve", lambda *arguments: print("Running on http://127.0.0.1:7860"))  # noqa: T201
    assert "Running" in call("serve")[1] and call("serve", "--quiet") == (0, "", "")


def test_the_options_for_scripts_are_the_same_everywhere(command):
    for name, each in typer.main.get_command(commands.app).commands.items():
        flags = {flag for parameter in each.params for flag in parameter.opts}
        assert {"--quiet", "-q"} <= flags and ("--format" in flags) == (name != "serve"), name


def test_progress_has_speed_errors_and_shard(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("Explained") as progress:
        for done, errors in ((40, 0), (60, 1), (80, 1), (100, 0)):
            progress.detail(errors, done // 50 + 1, 3)
            progress(done, 100)
            now[0] += 31
    assert capsys.readouterr().err.splitlines() == [
        "Explained 60 of 100, 0.645 images/s, 62 s left, 1 error, shard 2 of 3",
        "Explained 80 of 100, 0.645 images/s, 31 s left, 2 errors, shard 2 of 3",
        "Explained 100 of 100, 2 errors",
    ]
    assert [duration(seconds) for seconds in (7, 600, 12_000)] == ["7 s", "10 min", "3 h 20 min"]


def test_layers_are_listed_and_completed(command, monkeypatch):
    code, output = command("layers", "efficientnet_lite0")
    names = [line.split()[0] for line in output.splitlines()]
    assert code == 0 and len(names) == len(set(names)) > 10 and " × " in output
    context = type("Context", (), {"params": {"model": "efficientnet_lite0"}})()
    found = list(completion.layers(context, names[3][:3]))
    assert names[3] in dict(found) and all(name.startswith(names[3][:3]) for name, _ in found)
    context.params["model"] = "no_such_model"
    assert list(completion.layers(context, "")) == []
    assert "grad_cam" in completion.methods("grad_c") and "efficientnet_lite0" in completion.models("effi")
    words = "saliscope explain images --model efficientnet_lite0 --layer "  # as bash calls it at TAB
    environment = {"_SALISCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "6"}
    output = CliRunner().invoke(commands.app, [], env=environment, prog_name="saliscope").output
    assert len(output.split()) > 10
    environment |= {"COMP_WORDS": "saliscope explain images --format ", "COMP_CWORD": "4"}
    output = CliRunner().invoke(commands.app, [], env=environment, prog_name="saliscope").output
    assert output.split() == ["text", "json"]
