"""`saliscope.runs`: the same rows as the command, finished runs, own networks, and what notebooks show."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from saliscope import runs
from saliscope.errors import Refused
from saliscope.zoo import ModelUnavailable
from tests.saliscope.runs.test_dataset_cli import EXAMPLES, command, explained
from tests.support import shapes

__all__ = ["command", "explained"]  # fixtures
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
    assert command("explain", EXAMPLES, "--out", tmp_path / "a", "--workers", 0, *options.split())[0] == 0
    run = runs.explain(
        EXAMPLES, tmp_path / "b", method="integrated_gradients", steps=3, target="208", limit=3, batch_size=2, seed=1,
    )  # fmt: skip
    other = runs.open(tmp_path / "a")
    assert len(run) == run.new == 3 and other.new is None
    assert rows_of(run) == rows_of(other)
    settings = [json.loads((tmp_path / name / "settings.json").read_text()) for name in "ab"]
    assert settings[0] == settings[1]
    expected = {"method": "integrated_gradients", "options": {"steps": 3}, "target": "208", "batch_size": 2, "seed": 1}
    assert expected.items() <= settings[0].items() and "3 images" in settings[0]["images"]


def test_a_stopped_run_resumes_and_a_finished_one_is_opened(images, model, tmp_path):
    def stop(done: int, total: int | None) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.explain(images, tmp_path / "run", model=model, batch_size=2, progress=stop)
    with pytest.raises(Refused, match="not finished"):
        runs.open(tmp_path / "run")
    run = runs.explain(images, tmp_path / "run", model=model, batch_size=2)
    whole = runs.explain(images, tmp_path / "whole", model=model, batch_size=2)
    assert (run.new, whole.new) == (3, 7) and rows_of(run) == rows_of(whole)
    assert runs.explain(images, tmp_path / "run", model=model, batch_size=2).new == 0


def test_rows_have_maps_as_arrays(images, model, tmp_path):
    run = runs.explain(images, tmp_path / "run", model=model)
    rows = list(run)
    assert [row["path"] for row in rows] == run.table(["path"])["path"].to_pylist()
    assert [row["map"] is None for row in rows] == [row["error"] is not None for row in rows]
    (first,) = [row for row in rows if row["path"] == "square/1.png"]
    found = Image.open(images / "square" / "1.png")
    own = shapes.trained(0.0, steps=0)
    assert first["prediction_index"] == int(own.network(own.prepare(found)).argmax())
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


def test_wrong_settings_are_refused(images, tmp_path):
    for words, options in (
        ("Unknown engine 'spark'", {"engine": "spark"}),
        ("needs the engine ray", {"gpus": 1}),
        ("no option 'steps'", {"steps": 3}),
        ("Unknown method 'gradcam'", {"method": "gradcam"}),
        ("Invalid batch_size 0", {"batch_size": 0}),
    ):
        with pytest.raises(Refused, match=words) as error:
            runs.explain(images, tmp_path / "run", **options)
        assert "--" not in str(error.value), "the name in Python, not a flag"
    assert not list(tmp_path.iterdir())


def test_a_report_with_a_wrong_link_is_refused(images, model, tmp_path):
    run = runs.explain(images, tmp_path / "run", model=model)
    with pytest.raises(Refused, match="'saliscope' is not a URL"):
        run.report(tmp_path / "r.html", link="saliscope")
    assert not (tmp_path / "r.html").exists()


def test_notebooks_show_a_run(images, model, tmp_path):
    """The table, escaped names, an overlay of each shown image, and a PNG file for hosts that show no HTML."""
    folder = tmp_path / "images"
    for path in images.rglob("*.png"):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / path.parent.name / path.name).write_bytes(path.read_bytes())
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
