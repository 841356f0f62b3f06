"""The commands that use runs: compare, export, layers, --dry-run, progress and logs."""

from __future__ import annotations

import json
import re
import time

from pyarrow import parquet as pq
from typer.testing import CliRunner

from saliscope.cli import commands, completion
from saliscope.cli.progress import Progress, duration
from tests.saliscope.runs.test_dataset_cli import EXAMPLES, command, explained

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
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--dry-run", "--log-format", "json")
    event = json.loads(output)
    assert event["event"] == "finished" and event["images"] == 9 and event["seconds"] > 0 and event["bytes"] > 0
    assert command("explain", tmp_path / "no", "--out", tmp_path / "run", "--dry-run")[0] == 1


def test_quiet_and_json(command, tmp_path):
    explain = ("explain", EXAMPLES, "--out", tmp_path / "b", "--limit", 2, "--workers", 0)
    code, output = command(*explain, "--log-format", "json")
    events = [json.loads(line) for line in output.splitlines()]
    assert code == 0 and [each["event"] for each in events] == ["progress", "finished"]
    assert (events[0]["done"], events[0]["total"], events[0]["errors"], events[0]["shards"]) == (2, 2, 0, 1)
    assert events[1]["images"] == 2 and events[1]["folder"] == str(tmp_path / "b")
    assert command(*explain, "--quiet") == (0, "")
    code, output = command("report", tmp_path / "no", "--log-format", "json")
    assert code == 1 and json.loads(output)["event"] == "error"
    code, output = command("report", tmp_path / "no", "--quiet")
    assert code == 1 and "Folder not found" in output, "errors are printed"


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
