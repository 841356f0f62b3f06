"""What version 0.8.0 saved still opens: a bundle, a finished run, and an address of the page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from explainers import METHODS
from explainers.perturbation import threefry
from saliscope.cli import commands
from saliscope.session import engine, model_cache
from saliscope.session.bundles import links, replay
from saliscope.session.request import Request
from tests.support.calls import small
from tests.support.nets import random_images, residual
from tests.support.token_nets import vit

DATA = Path(__file__).parents[1] / "data" / "v0.8.0"
EXAMPLES = Path(__file__).parents[2] / "assets" / "examples"
LINK = {
    "example": "coffee",
    "model": "efficientnet_lite0",
    "layer": "stages.4",
    "class": "cup",
    "method": "grad_cam",
    "options": '{"relu": false}',
}


def test_a_bundle_is_computed_again() -> None:
    lines: list[str] = []

    assert replay.run(str(DATA / "bundle.zip"), lines.append) == 0, lines


def test_the_methods_with_other_noise_are_those_that_draw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of version 0.8 with one of these methods cannot be recomputed, and `replay` says so."""
    drawn: set[str] = set()
    current = ""
    for kind in ("normal", "uniform"):
        draw = getattr(threefry, kind)
        monkeypatch.setattr(threefry, kind, lambda *given, draw=draw: (drawn.add(current), draw(*given))[1])
    networks = (
        (residual().float(), random_images(1).float()),
        (vit(2).float(), random_images(1, height=64, width=64).float()),
    )
    for current in (name for name, method in METHODS.items() if method.stochastic and method.gives_map):
        for network, images in networks:
            if METHODS[current].applies(network) is None:
                METHODS[current](network, images, 1, **small(current))

    assert drawn == set(replay.NOISY)


@pytest.mark.parametrize(
    ("version", "expected"), [("0.8.0", True), ("0.10.1", False), ("0.9.0", False), ("", False), ("x.y", False)]
)
def test_versions_with_other_noise(version: str, expected: bool) -> None:
    assert replay._older(version) == expected


def test_an_address_makes_the_same_request() -> None:
    model_cache.start(delay=0.0)
    model_cache.ready.wait()

    request, example, notes = links.read(LINK)

    assert example is not None and example.id == "coffee" and notes == []
    expected = ("efficientnet_lite0", "stages.4", "cup", "grad_cam", {"relu": False})
    assert (request.model, request.layer, request.target, request.method, request.options) == expected
    settings = engine.resolve(Request(**vars(request)))
    assert links.state(settings) == {key: value for key, value in LINK.items() if key != "example"}


def test_a_run_is_reported_evaluated_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_keep_freed_memory", lambda: None)  # it would affect all tests in this process
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)  # as in the run
    shutil.copytree(DATA / "run", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    manifest["directory"] = str(tmp_path)  # where the run was started, which is another folder on every machine
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (tmp_path / "src").mkdir()
    for name in ("coffee.jpg", "dog.jpg"):
        shutil.copy(EXAMPLES / name, tmp_path / "src")

    command("report", "run", "--out", "report.html")
    assert "espresso" in Path("report.html").read_text(encoding="utf-8")
    command("evaluate", "run", "--steps", "3")
    assert "deletion" in Path("run/evaluation.json").read_text(encoding="utf-8")
    command("explain", "src", "--out", "run", "--workers", "0")
    assert manifest == json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8")), "nothing to do"


def command(*arguments: str) -> None:
    """Run a command of the command line."""
    with pytest.raises(SystemExit) as end:
        commands.main(list(arguments))
    assert not end.value.code


def test_an_address_with_a_renamed_method_is_still_answered() -> None:
    """`centre_control` became `center_control` in version 0.9.0."""
    model_cache.start(delay=0.0)
    model_cache.ready.wait()

    request, _, _ = links.read({**LINK, "method": "centre_control", "options": ""})

    settings = engine.resolve(request)
    assert settings.method.name == "center_control" and not settings.notes
