"""The API endpoints of a running app, called with gradio_client: results and invalid arguments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
gradio_client = pytest.importorskip("gradio_client", reason="gradio_client is not installed")
from gradio_client.exceptions import AppError  # noqa: E402

from saliscope.page.api import tab  # noqa: E402
from saliscope.session import engine  # noqa: E402
from saliscope.session.request import Request  # noqa: E402
from tests.saliscope.browser.conftest import ROOT  # noqa: E402

COFFEE = ROOT / "assets/examples/coffee.jpg"


@pytest.fixture(scope="module")
def client(app: str) -> Any:
    return gradio_client.Client(app, verbose=False)


def test_explain_returns_map_overlay_and_texts(client: Any) -> None:
    answer = client.predict(gradio_client.handle_file(str(COFFEE)), api_name="/explain")

    assert (answer["model"], answer["method"], answer["layer"]) == ("efficientnet_lite0", "grad_cam", "head")
    assert len(answer["predictions"]) == 5 and 0 < answer["predictions"][0]["probability"] <= 1
    assert answer["target"]["name"] == answer["predictions"][0]["name"]
    values = np.load(_path(answer["map"]))
    assert values.shape == (7, 7) and values.dtype == np.float32
    assert answer["statistics"]["max"] == pytest.approx(float(values.max()), rel=1e-5)
    overlay = Image.open(_path(answer["overlay"]))
    assert overlay.format == "PNG" and overlay.size == (350, 350)


def test_explain_accepts_every_setting(client: Any) -> None:
    answer = client.predict(
        image=gradio_client.handle_file(str(COFFEE)),
        model="efficientnet_lite0",
        method="layer_cam",
        layer="stages.2",
        target="goldfish",
        options={"relu": False},
        api_name="/explain",
    )

    assert (answer["method"], answer["layer"], answer["target"]["name"]) == ("layer_cam", "stages.2", "goldfish")
    assert answer["options"]["relu"] is False and answer["shape"] == [28, 28]


def test_methods_with_several_planes_return_all_planes(client: Any) -> None:
    answer = client.predict(gradio_client.handle_file(str(COFFEE)), method="token_pca", api_name="/explain")

    values = np.load(_path(answer["map"]))
    assert answer["shape"] == [3, 7, 7] and values.shape == (3, 7, 7)
    norms = np.linalg.norm(values.reshape(3, -1), axis=1)
    assert norms[0] > norms[1] > norms[2] > 0


def test_precision_is_automatic_unless_given(client: Any) -> None:
    upload, options = gradio_client.handle_file(str(COFFEE)), {"window": 112, "stride": 112}
    ask = {"method": "occlusion", "api_name": "/explain"}

    chosen = client.predict(upload, options=options, **ask)
    named = client.predict(upload, options={**options, "precision": "float32"}, **ask)
    quick = client.predict(upload, method="saliency", api_name="/explain")

    assert chosen["options"]["precision"] in ("auto", "bf16", "float32") and named["options"]["precision"] == "float32"
    np.testing.assert_allclose(np.load(_path(chosen["map"])), np.load(_path(named["map"])), rtol=0.1, atol=1e-3)
    assert "precision" not in quick["options"]


def test_feature_maps_are_the_output_of_the_layer(client: Any) -> None:
    upload = gradio_client.handle_file(str(COFFEE))
    answer = client.predict(upload, "efficientnet_lite0", "stages.4", [5, 3], "effect", api_name="/feature_maps")

    values = np.load(_path(answer["maps"]))
    assert answer["channels"] == [5, 3] and values.shape == (2, 14, 14)
    assert answer["mean"] == pytest.approx(values.mean((1, 2)).tolist(), rel=1e-4, abs=1e-6)
    assert len(answer["effect"]) == 2


def test_feature_maps_are_sorted(client: Any) -> None:
    answer = client.predict(
        gradio_client.handle_file(str(COFFEE)), "", "stages.1", None, "activation", api_name="/feature_maps"
    )

    assert answer["mean"] == sorted(answer["mean"], reverse=True) and len(answer["channels"]) == 24


def test_lists(client: Any) -> None:
    models = client.predict(api_name="/list_models")
    layers = client.predict("efficientnet_lite0", api_name="/list_layers")
    methods = client.predict("efficientnet_lite0", "head", api_name="/list_methods")

    names = [each["name"] for each in models if each["name"] != "tests.support.two_encoders:build"]
    assert names[0] == "efficientnet_lite0" and {"resnet50", "vit_b_16"} <= {*names}
    assert [each["name"] for each in layers if each["default"]] == ["head"]
    assert {"grad_cam", "saliency", "occlusion"} <= {each["name"] for each in methods}
    assert all(option["name"] for each in methods for option in each["options"])


@pytest.mark.parametrize(
    "wrong, word",
    [
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
    ],
)
def test_invalid_arguments_are_refused(client: Any, wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(AppError) as refused:
        client.predict(gradio_client.handle_file(str(COFFEE)), **wrong, api_name="/explain")

    assert word in str(refused.value) and "Traceback" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"channels": [1280]}, {"channels": ["x"]}, {"channels": "all"}, {"sort": "beauty"}])
def test_invalid_channels_are_refused(client: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(AppError, match="channels must be|Unknown sort"):
        client.predict(gradio_client.handle_file(str(COFFEE)), **wrong, api_name="/feature_maps")


@pytest.mark.parametrize(
    "route, message, word",
    [
        ("call/explain", {"data": [None, "", "", "", "", None, "", "more"]}, "takes 7 arguments, got 8"),
        ("call/explain", {"data": [None, "efficientnet_lite0"]}, "image, model, method, layer, target, options, bands"),
        ("run/list_models", {"data": ["timm"]}, "takes 0 arguments, got 1"),
        ("call/explain", {"data": [None, "", "", "", "", None, ""], "methode": "rise"}, "Did you mean method?"),
        ("call/v2/list_layers", {"modell": "efficientnet_lite0"}, "Did you mean model?"),
    ],
)
def test_unknown_arguments_are_refused(app: str, route: str, message: Any, word: str) -> None:
    """Gradio ignores them or reports an internal server error."""
    refused = _post(app, route, message)

    assert refused.startswith("error 400") and word in json.loads(refused.partition(": ")[2])["detail"]


def test_a_file_that_was_not_uploaded_is_refused(app: str) -> None:
    """Gradio passes such a dictionary to the function unchanged."""
    for path in ("/etc/passwd", str(ROOT / "app.py"), "../../etc/passwd"):
        for image in ({"path": path}, {"path": path, "meta": {"_type": "gradio.FileData"}}, path):
            answer = _call(app, "explain", [image, "", "", "", "", None, ""])
            assert "root:" not in answer and "argparse" not in answer and "error" in answer, answer


def test_a_malicious_file_is_refused(client: Any, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"<svg onload=alert(1)>")

    with pytest.raises(AppError, match="is not supported"):
        client.predict(gradio_client.handle_file(str(tmp_path / "picture.png")), api_name="/explain")


def test_the_shell_snippet_runs(app: str, tmp_path: Path) -> None:
    """The snippet runs unchanged with bash and curl, for a class with an apostrophe and an option."""
    if not shutil.which("bash") or not shutil.which("curl"):
        pytest.skip("bash and curl are needed")
    names = {"target": "jack-o'-lantern", "method": "grad_cam", "layer": "stages.4"}
    settings = engine.resolve(Request(model="efficientnet_lite0", **names, options={"relu": False}))
    shell = tab.snippets(settings)["items"][-1]["code"].replace("{origin}", app + "/")
    shutil.copy(COFFEE, tmp_path / "photo.jpg")

    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=180)

    event, answer = done.stdout.split("\ndata: ")
    found = json.loads(answer)[0]
    assert event == "event: complete" and done.stderr == ""
    assert (found["target"]["name"], found["layer"], found["options"]) == (*list(names.values())[::2], {"relu": False})
    assert np.load(tmp_path / "map.npy").shape == tuple(found["shape"]) == (14, 14)


def test_only_these_endpoints_are_offered(client: Any) -> None:
    offered = client.view_api(return_format="dict")["named_endpoints"]

    assert set(offered) == {"/explain", "/feature_maps", "/list_models", "/list_layers", "/list_methods"}


def _path(value: Any) -> str:
    return value["path"] if isinstance(value, dict) else value


def _call(address: str, name: str, data: list[Any]) -> str:
    """Call an endpoint over plain HTTP; return the event stream, or the error of the first request."""
    answer = _post(address, f"call/{name}", {"data": data})
    if answer.startswith("error"):
        return answer
    event = json.loads(answer)["event_id"]
    return urllib.request.urlopen(f"{address}/gradio_api/call/{name}/{event}", timeout=180).read().decode()


def _post(address: str, route: str, message: dict[str, Any]) -> str:
    """Return the response of a route, or its error."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/gradio_api/{route}", json.dumps(message).encode(), headers)
    try:
        return urllib.request.urlopen(request, timeout=60).read().decode()
    except urllib.error.HTTPError as error:
        return f"error {error.code}: {error.read().decode()}"
