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


def test_explain_accepts_every_setting(client: Any) -> None:
    chosen = {"model": "efficientnet_lite0", "method": "layer_cam", "layer": "stages.2"}
    answer = explain(client, **chosen, target="goldfish", options={"relu": False})
    assert {name: answer[name] for name in chosen} == chosen and answer["target"]["name"] == "goldfish"
    assert answer["options"]["relu"] is False and answer["shape"] == [28, 28]
    several = explain(client, method="token_pca")
    values = np.load(file(several["map"]))
    assert several["shape"] == [3, 7, 7] == list(values.shape), "all planes"
    norms = np.linalg.norm(values.reshape(3, -1), axis=1)
    assert norms[0] > norms[1] > norms[2] > 0


def test_precision_is_automatic_unless_given(client: Any) -> None:
    options = {"window": 112, "stride": 112}
    chosen = explain(client, method="occlusion", options=options)
    named = explain(client, method="occlusion", options={**options, "precision": "float32"})
    assert chosen["options"]["precision"] in ("auto", "bf16", "float32") and named["options"]["precision"] == "float32"
    np.testing.assert_allclose(np.load(file(chosen["map"])), np.load(file(named["map"])), rtol=0.1, atol=1e-3)
    assert "precision" not in explain(client, method="saliency")["options"]


def test_feature_maps_are_the_output_of_the_layer(client: Any) -> None:
    answer = feature_maps(client, model="efficientnet_lite0", layer="stages.4", channels=[5, 3], sort="effect")
    values = np.load(file(answer["maps"]))
    assert answer["channels"] == [5, 3] and values.shape == (2, 14, 14) and len(answer["effect"]) == 2
    assert answer["mean"] == pytest.approx(values.mean((1, 2)).tolist(), rel=1e-4, abs=1e-6)
    all_channels = feature_maps(client, layer="stages.1", sort="activation")
    assert len(all_channels["channels"]) == 24
    assert all_channels["mean"] == sorted(all_channels["mean"], reverse=True)


def test_lists(client: Any) -> None:
    models = client.predict(api_name="/list_models")
    layers = client.predict("efficientnet_lite0", api_name="/list_layers")
    methods = client.predict("efficientnet_lite0", "head", api_name="/list_methods")
    names = [each["name"] for each in models if each["name"] != "tests.support.two_encoders:build"]
    assert names[0] == "efficientnet_lite0" and {"resnet50", "vit_b_16"} <= {*names}
    assert [each["name"] for each in layers if each["default"]] == ["head"]
    assert {"grad_cam", "saliency", "occlusion"} <= {each["name"] for each in methods}
    assert all(option["name"] for each in methods for option in each["options"])
    offered = client.view_api(return_format="dict")["named_endpoints"]
    assert set(offered) == {"/explain", "/feature_maps", "/list_models", "/list_layers", "/list_methods"}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": "resnet5000"}, "resnet5000"),
    ({"layer": "haed"}, "head"),
    ({"method": "grad_cma"}, "grad_cam"),
    ({"target": "goldfisch"}, "goldfish"),
    ({"target": "100000"}, "100000"),
    ({"options": {"relu": "perhaps"}}, "relu"),
    ({"options": ["relu"]}, "object"),
    ({"options": {"rulo": True}}, "relu"),
    ({"method": "saliency", "options": {"<b>samples</b>": 3}}, "Saliency has no option “<b>samples</b>”"),
    ({"model": 5}, "model"),
    ({"layer": ["head"]}, "layer"),
    ({"target": "x" * 501}, "500"),
]
WRONG_CHANNELS: list[dict[str, Any]] = [
    {"channels": [1280]},
    {"channels": ["x"]},
    {"channels": "all"},
    {"sort": "beauty"},
]


def test_invalid_arguments_are_refused(client: Any, tmp_path: Path) -> None:
    for wrong, word in WRONG:
        with pytest.raises(AppError) as refused:
            explain(client, **wrong)
        assert word in str(refused.value) and "Traceback" not in str(refused.value), wrong
    for wrong in WRONG_CHANNELS:
        with pytest.raises(AppError, match="channels must be|Unknown sort"):
            feature_maps(client, **wrong)
    (tmp_path / "picture.png").write_bytes(b"<svg onload=alert(1)>")
    with pytest.raises(AppError, match="is not supported"):
        explain(client, tmp_path / "picture.png")


def test_unknown_arguments_are_refused(app: str) -> None:
    """Gradio ignores them or reports an internal server error."""
    more: dict[str, Any] = {"data": [None, "", "", "", "", None, "", "more"]}
    misspelled = {"data": [None, "", "", "", "", None, ""], "methode": "rise"}
    for route, message, word in (
        ("call/explain", more, "takes 7 arguments, got 8"),
        ("call/explain", {"data": [None, "efficientnet_lite0"]}, "image, model, method, layer, target, options, bands"),
        ("run/list_models", {"data": ["timm"]}, "takes 0 arguments, got 1"),
        ("call/explain", misspelled, "Did you mean method?"),
        ("call/v2/list_layers", {"modell": "efficientnet_lite0"}, "Did you mean model?"),
    ):
        refused = httpx.post(f"{app}/gradio_api/{route}", json=message, timeout=60)
        assert refused.status_code == 400 and word in refused.json()["detail"], message


def test_a_file_that_was_not_uploaded_is_refused(app: str) -> None:
    """Gradio passes such a dictionary to the function unchanged."""
    for path in ("/etc/passwd", str(ROOT / "app.py"), "../../etc/passwd"):
        for image in ({"path": path}, {"path": path, "meta": {"_type": "gradio.FileData"}}, path):
            data = [image, "", "", "", "", None, ""]
            answer = httpx.post(f"{app}/gradio_api/run/explain", json={"data": data}, timeout=180)
            assert answer.status_code >= 400 and "root:" not in answer.text and "argparse" not in answer.text


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
