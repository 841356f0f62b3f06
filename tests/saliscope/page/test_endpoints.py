"""The API endpoints of a running app, called with gradio_client: results and invalid arguments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
gradio_client = pytest.importorskip("gradio_client", reason="gradio_client is not installed")
from gradio_client.exceptions import AppError  # noqa: E402

from saliscope.compute import engine  # noqa: E402
from saliscope.compute.request import Request  # noqa: E402
from saliscope.page.api import snippets  # noqa: E402
from tests.saliscope.browser.conftest import ROOT  # noqa: E402

COFFEE = ROOT / "assets/examples/coffee.jpg"


@pytest.fixture(scope="module")
def client(app: str) -> Any:
    return gradio_client.Client(app, verbose=False)


def explain(client: Any, image: Path = COFFEE, **settings: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.predict(gradio_client.handle_file(str(image)), **settings, api_name="/explain")
    return answer


def feature_maps(client: Any, **settings: Any) -> dict[str, Any]:
    upload = gradio_client.handle_file(str(COFFEE))
    answer: dict[str, Any] = client.predict(upload, **settings, api_name="/feature_maps")
    return answer


def file(value: Any) -> str:
    return str(value["path"] if isinstance(value, dict) else value)


def test_explain_returns_map_overlay_and_texts(client: Any) -> None:
    answer = explain(client)
    assert (answer["model"], answer["method"], answer["layer"]) == ("efficientnet_lite0", "grad_cam", "head")
    assert len(answer["predictions"]) == 5 and 0 < answer["predictions"][0]["probability"] <= 1
    assert answer["target"]["name"] == answer["predictions"][0]["name"]
    values = np.load(file(answer["map"]))
    assert values.shape == (7, 7) and values.dtype == np.float32
    assert answer["statistics"]["max"] == pytest.approx(float(values.max()), rel=1e-5)
    overlay = Image.open(file(answer["overlay"]))
    assert overlay.format == "PNG" and overlay.size == (350, 350)
    several = explain(client, method="token_pca")
    assert several["shape"] == [3, 7, 7] == list(np.load(file(several["map"])).shape), "all planes"


def test_feature_maps_are_the_output_of_the_layer(client: Any) -> None:
    answer = feature_maps(client, model="efficientnet_lite0", layer="stages.4", channels=[5, 3], sort="effect")
    values = np.load(file(answer["maps"]))
    assert answer["channels"] == [5, 3] and values.shape == (2, 14, 14) and len(answer["effect"]) == 2
    assert answer["mean"] == pytest.approx(values.mean((1, 2)).tolist(), rel=1e-4, abs=1e-6)
    all_channels = feature_maps(client, layer="stages.1", sort="activation")
    assert all_channels["mean"] == sorted(all_channels["mean"], reverse=True)


def test_lists(client: Any) -> None:
    offered = client.view_api(return_format="dict")["named_endpoints"]
    assert set(offered) == {"/explain", "/feature_maps", "/list_models", "/list_layers", "/list_methods"}
    layers = client.predict("efficientnet_lite0", api_name="/list_layers")
    assert [each["name"] for each in layers if each["default"]] == ["head"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": "resnet5000"}, "resnet5000"),
    ({"layer": "haed"}, "head"),
    ({"method": "grad_cma"}, "grad_cam"),
    ({"target": "goldfisch"}, "goldfish"),
    ({"options": {"rulo": True}}, "relu"),
    ({"layer": ["head"]}, "layer"),
    ({"target": "x" * 501}, "500"),
]


def test_invalid_arguments_are_refused(client: Any, tmp_path: Path) -> None:
    for wrong, word in WRONG:
        with pytest.raises(AppError) as refused:
            explain(client, **wrong)
        assert word in str(refused.value) and "Traceback" not in str(refused.value), wrong
    for wrong in ({"channels": [1280]}, {"channels": "all"}, {"sort": "beauty"}):
        with pytest.raises(AppError, match="channels must be|Unknown sort"):
            feature_maps(client, **wrong)
    (tmp_path / "picture.png").write_bytes(b"<svg onload=alert(1)>")
    with pytest.raises(AppError, match="is not supported"):
        explain(client, tmp_path / "picture.png")


def test_unknown_arguments_and_events_are_refused(app: str) -> None:
    """test_guard.py has more."""
    more = {"data": ["", "more"]}
    for route, message, status in (("call/list_layers", more, 400), ("queue/join", more | {"fn_index": 10**5}, 404)):
        assert httpx.post(f"{app}/gradio_api/{route}", json=message, timeout=60).status_code == status


def test_the_shell_snippet_runs(app: str, tmp_path: Path) -> None:
    """The snippet runs unchanged with bash and curl, for a class with an apostrophe and an option."""
    if not shutil.which("bash") or not shutil.which("curl"):
        pytest.skip("bash and curl are needed")
    names = {"target": "jack-o'-lantern", "method": "grad_cam", "layer": "stages.4"}
    settings = engine.resolve(Request(model="efficientnet_lite0", **names, options={"relu": False}))
    shell = snippets.snippets(settings)["items"][-1]["code"].replace("{origin}", app + "/")
    shutil.copy(COFFEE, tmp_path / "photo.jpg")

    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=180)

    event, answer = done.stdout.split("\ndata: ")
    found = json.loads(answer)[0]
    assert event == "event: complete" and done.stderr == ""
    assert (found["target"]["name"], found["layer"]) == ("jack-o'-lantern", "stages.4")
    assert found["options"] == {"relu": False}
    assert np.load(tmp_path / "map.npy").shape == tuple(found["shape"]) == (14, 14)
