"""Runs by commands (compare, export, layers, --dry-run, progress and logs) and in Python (`saliscope.runs`)."""

from __future__ import annotations

import doctest
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

from saliscope import runs
from saliscope.cli import commands, serving
from saliscope.cli.progress import Progress
from saliscope.errors import Refused
from saliscope.runs.formats import duration
from saliscope.zoo import ModelUnavailable
from tests.saliscope.runs.test_dataset_cli import EXAMPLES, ROOT, SMALL, call, command, explained
from tests.support import shapes

__all__ = ["command", "explained"]  # fixtures


def test_a_dry_run_writes_nothing(command, tmp_path):
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--dry-run", "--batch-size", 2, *SMALL)
    assert code == 0 and not (tmp_path / "run").exists()
    assert re.search(r"9 images \(folder\), grad_cam of \S+, target predicted, batches of 2\.", output)
    assert re.search(r"Measured on \d images: [\d.]+ ms to read and [\d.]+ ms to explain each, [\d,]+ bytes", output)
    assert re.search(r"Estimate: \d+ s in one process, [\d.]+ images/s, [\d.]+ MB\.\nNothing was written\.", output)
    code, output = command("explain", EXAMPLES, "--out", tmp_path / "run", "--dry-run", "--format", "json", *SMALL)
    plan = json.loads(output)
    assert list(plan) == documented()["explain --dry-run"]
    assert plan["images"] == 9 and plan["seconds"] > 0 and plan["bytes"] > 0
    assert command("explain", tmp_path / "no", "--out", tmp_path / "run", "--dry-run")[0] == 1


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
        "evaluate": (run, "--images", 1, "--steps", 2, "--metrics", "deletion"),
        "compare": (run, explained, "--out", tmp_path / "c.html"),
        "export": (run, "--to", "hf", "--out", tmp_path / "hf"),
        "index": (EXAMPLES, "--out", tmp_path / "units", "--layers", "stages.4", "--limit", 2, *SMALL),
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
        logged = [json.loads(line) for line in errors.splitlines() if line != "hello"]
        if name == "explain":
            assert found["counts"]["images"] == found["new"] == 2 and found["settings"]["method"] == "grad_cam"
            assert [logged[-1][key] for key in ("event", "done", "total", "errors")] == ["progress", 2, 2, 0]
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
        code, out, errors = call(name, *arguments, "--quiet")
        assert (code, (out + errors).replace("hello\n", "")) == (0, ""), name


def test_errors_are_one_json_object(command, tmp_path):
    """Also wrong usage, whose option may be anywhere. As text, they are printed although the command is quiet."""
    for code, words in (
        (1, "report {}/no --format json --quiet"),
        (1, "replay {}/no.zip --format=json"),
        (1, "layers no_such_model --format json"),
        (2, "explain {} --out run --format json --batch-size many"),
        (2, "models --format json --unknown"),
        (2, "export {} --out x --to yolo --format json"),
    ):
        found, out, errors = call(*words.format(tmp_path).split())
        error = json.loads(errors)
        assert found == code and out == "" and error["exit"] == code and len(error["error"]) > 10, words
    code, out, errors = call("report", tmp_path / "no", "--quiet")
    assert code == 1 and out == "" and "Folder not found" in errors
    code, out, errors = call("methods", "--format", "json", "-q")
    assert code == 0 and errors == "" and json.loads(out), "the result is printed although it is quiet"


def test_a_quiet_page_does_not_print_its_address(command, monkeypatch):
    monkeypatch.setattr(serving, "check_address", lambda *address: None)
    monkeypatch.setattr(serving, "serve", lambda *arguments: print("Running on http://127.0.0.1:7860"))  # noqa: T201
    assert "Running" in call("serve")[1] and call("serve", "--quiet") == (0, "", "")


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


def complete(words: str) -> list[str]:
    """Return what bash offers at TAB."""
    environment = {"_SALISCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return CliRunner().invoke(commands.app, [], env=environment, prog_name="saliscope").output.split()


def test_layers_are_listed_and_completed(command):
    code, output = command("layers", "efficientnet_lite0")
    names = [line.split()[0] for line in output.splitlines()]
    assert code == 0 and len(names) == len(set(names)) > 10 and " × " in output
    layers = "saliscope explain images --model {} --layer {}".format
    assert len(complete(layers("efficientnet_lite0", ""))) > 10 and complete(layers("no_such_model", "")) == []
    found = complete(layers("efficientnet_lite0", names[3][:3]))
    assert names[3] in found and all(name.startswith(names[3][:3]) for name in found)
    assert "grad_cam" in complete("saliscope explain images --method grad_c")
    assert "efficientnet_lite0" in complete("saliscope explain images --model effi")
    assert complete("saliscope explain images --format ") == ["text", "json"]


# In Python

HOSTILE = "<script>alert(1)&.png"
METHODS = ("table", "report", "evaluate", "compare", "export")


@pytest.fixture(scope="module")
def model():
    return shapes.trained(0.0, steps=0)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write six images in folders by class, one of which has a hostile name and one is not an image."""
    folder = tmp_path_factory.mktemp("images")
    for k, (name, _, image) in enumerate(shapes.labeled_images(2, 0.0, 0)):
        (folder / name).mkdir(exist_ok=True)
        image.save(folder / name / (HOSTILE if k == 0 else f"{k}.png"))
    (folder / "circle" / "broken.png").write_text("no image")
    return folder


def rows_of(run: runs.Run) -> list[dict]:
    return run.table([name for name in run.table().column_names if name != "seconds"]).to_pylist()


def test_the_function_and_the_command_write_the_same_rows(command, tmp_path):
    options = "--method integrated_gradients --option steps=3 --target 208 --limit 3 --batch-size 2 --seed 1"
    assert command("explain", EXAMPLES, "--out", tmp_path / "a", "--workers", 0, *SMALL, *options.split())[0] == 0
    seen: list[int] = []
    run = runs.explain(
        EXAMPLES, tmp_path / "b", model=SMALL[1], method="integrated_gradients", steps=3, target="208", limit=3,
        batch_size=2, seed=1, progress=lambda done, total: seen.append(done),
    )  # fmt: skip
    other = runs.open(tmp_path / "a")
    assert seen[-1] == 3
    assert len(run) == run.new == 3 and other.new is None
    assert rows_of(run) == rows_of(other)
    settings = [json.loads((tmp_path / name / "settings.json").read_text()) for name in "ab"]
    assert settings[0] == settings[1]
    expected = {"method": "integrated_gradients", "options": {"steps": 3}, "target": "208", "batch_size": 2, "seed": 1}
    assert expected.items() <= settings[0].items() and "3 images" in settings[0]["images"]


def test_rows_have_maps_as_arrays(images, model, tmp_path):
    run = runs.explain(images, tmp_path / "run", model=model)
    rows = list(run)
    assert [row["path"] for row in rows] == run.table(["path"])["path"].to_pylist()
    assert [row["map"] is None for row in rows] == [row["error"] is not None for row in rows]
    (first,) = [row for row in rows if row["path"] == "square/1.png"]
    assert first["map"].dtype == np.float32 and first["map"].shape == (first["map_height"], first["map_width"])
    assert run.accuracy == run.counts["correct"] / 6 and run.counts["unreadable"] == 1
    with pytest.raises(Refused, match="no column 'maps'"):
        run.table(["maps"])


def test_an_own_network_is_given_as_a_model(images, model, tmp_path):
    """Its name cannot be loaded, so a program that opens the run again passes it."""
    run = runs.explain(images, tmp_path / "run", model=model)
    assert run.export("coco", tmp_path / "coco").written == 6
    with pytest.raises(ModelUnavailable):
        runs.open(tmp_path / "run").export("coco", tmp_path / "again")
    again = runs.open(tmp_path / "run", model=model)
    assert again.evaluate(images=2, steps=2, metrics="deletion").images == 2
    with pytest.raises(Refused, match="weights"):
        runs.open(tmp_path / "run", model=shapes.trained(0.0, seed=1, steps=0)).evaluate(images=2, steps=2)
    with pytest.raises(Refused, match=r"Linear has no class names.*saliscope\.zoo\.Model"):
        runs.explain(images, tmp_path / "no", model=nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(Refused, match="already loaded"):
        runs.explain(images, tmp_path / "no", model=model, model_options={"size": 32})
    training = shapes.trained(0.0, steps=0)
    training.network.train()
    with pytest.raises(Refused, match="training mode"):
        runs.explain(images, tmp_path / "no", model=training)


def test_notebooks_show_a_run(images, model, tmp_path):
    """The table, escaped names, an overlay of each shown image, and a PNG file for hosts that show no HTML."""
    folder = shutil.copytree(images, tmp_path / "images")
    run = runs.explain(folder, tmp_path / "run", model=model)
    bundle = run._repr_mimebundle_()
    html = bundle["text/html"]
    assert "<script" not in html and "&lt;script&gt;" in html and ' src="data:image/' in html and "http" not in html
    assert "grad_cam" in html and f"{run.accuracy:.1%}" in html and html.count("<img") == 5, "one of six is unreadable"
    assert bundle["image/png"][:4] == b"\x89PNG" and bundle["text/plain"] == repr(run)
    opened = runs.open(tmp_path / "run")
    assert opened._repr_html_() == html, "without the network"
    for path in folder.rglob("*.png"):
        path.unlink()
    again = opened._repr_html_()
    assert again.count("<img") == 5 and again != html, "only the maps"
    assert "model" not in vars(opened), "no network is loaded"


def test_notebooks_show_results(images, model, tmp_path):
    run = runs.explain(images, tmp_path / "run <b>", model=model)
    evaluated = run.evaluate(images=3, steps=2, metrics=["deletion", "insertion"])
    compared = run.compare(run, tmp_path / "<b>.html")
    for result, words in (
        (evaluated, (">random</th>", ">Deletion</td>")),
        (compared, (">unreadable</td>", "7 images in both runs")),
        (run.report(tmp_path / "<b>2.html"), ("Open it in a browser",)),
        (run.export("hf", tmp_path / "<b>3"), ("6 images in",)),
    ):
        html = result._repr_html_()
        assert all(word in html for word in words) and "<b>" not in html, html
        assert json.loads(json.dumps(result.to_dict())), "values are plain"


def test_the_examples_of_docstrings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    for image in ("alp", "cat"):
        (tmp_path / "images" / f"{image}.jpg").write_bytes((EXAMPLES / f"{image}.jpg").read_bytes())
    names = {"runs": runs, "run": runs.explain("images", "run", limit=2)}
    members = (runs.Run, runs.explain, runs.open, *(getattr(runs.Run, name) for name in METHODS))
    for each in members:
        test = doctest.DocTestParser().get_doctest(each.__doc__ or "", names, each.__qualname__, None, None)
        found = doctest.DocTestRunner().run(test)
        assert found.attempted and not found.failed, each


def test_importing_it_imports_neither_torch_nor_pyarrow():
    code = "import sys, saliscope.runs; print(*dir(saliscope.runs)); assert not {'torch', 'pyarrow'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(runs.__all__) and all(hasattr(runs, name) for name in runs.__all__)
