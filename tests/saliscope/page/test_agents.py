"""The tools for agents, called by a real client over the Model Context Protocol."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.page.agents import access
from saliscope.page.agents.images import read_image
from tests.saliscope.browser.conftest import served
from tests.support.coroutines import finished

pytest.importorskip("mcp", reason="mcp is not installed: pip install mcp")
DOG = examples.ASSETS / "examples" / "dog.jpg"
TOOLS = {"explain", "feature_maps", "list_models", "list_layers", "list_methods"}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("agents"), "app.py", "--mcp") as found:
        yield found


def call(address: str, *requests: tuple[str, dict[str, Any]], path: str = "/mcp") -> list[Any]:
    """Call tools with one client, and return their results; without requests, the tools.

    The client checks the structured content of a result against the schema of its tool.
    """
    from mcp import Client

    async def run() -> list[Any]:
        async with Client(f"{address}{path}") as client:
            tools = list((await client.list_tools()).tools)
            return [await client.call_tool(name, arguments) for name, arguments in requests] or tools

    return finished(run())


def post(address: str, method: str, parameters: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Send one message of the protocol as older clients do, and return its result."""
    import httpx

    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.post(f"{address}/mcp", json=body, headers=HEADERS | named, timeout=120)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()["result"]
    return result


def text(result: Any) -> Any:
    assert not result.is_error, result.content[0].text
    return json.loads(next(part.text for part in result.content if part.type == "text"))


def errors(address: str, *requests: tuple[str, dict[str, Any]]) -> list[str]:
    """Return the messages of calls that fail: one line each, without anything internal."""
    messages = []
    for (name, arguments), result in zip(requests, call(address, *requests), strict=True):
        assert result.is_error and result.structured_content is None, (name, arguments)
        (part,) = result.content
        for internal in ("Traceback", "pydantic", "Error executing", "saliscope.", 'File "', "gradio/", "\n"):
            assert internal not in part.text
        assert len(part.text) < 400
        messages.append(str(part.text))
    return messages


def images(result: Any) -> list[Image.Image]:
    parts = [part for part in result.content if part.type == "image"]
    found = [Image.open(io.BytesIO(base64.b64decode(part.data))) for part in parts]
    assert [f"image/{image.format.lower()}" for image in found] == [part.mime_type for part in parts]
    return found


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_every_tool_and_argument_is_described(address):
    import jsonschema

    tools = {tool.name: tool for tool in call(address)}
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert tool.title and tool.title == tool.annotations.title and tool.description
        assert tool.annotations.read_only_hint and tool.annotations.idempotent_hint
        assert tool.annotations.destructive_hint is False
        assert all(argument["description"] for argument in tool.input_schema["properties"].values())
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        jsonschema.Draft202012Validator.check_schema(tool.output_schema)
        assert tool.input_schema["type"] == tool.output_schema["type"] == "object"
        assert len(tool.model_dump_json(by_alias=True, exclude_none=True)) < 4_000
    assert tools["explain"].input_schema["required"] == ["image"]
    image = tools["explain"].input_schema["properties"]["image"]["description"]
    assert all(name in image for name in examples.all_examples())


def test_an_image_may_be_an_example_a_path_base64_or_a_data_url(address, tmp_path):
    data = encoded(DOG)
    spaced = tmp_path / "my dog (1).JPG"
    spaced.write_bytes(DOG.read_bytes())
    link = tmp_path / "link.jpg"
    link.symlink_to(DOG)
    lines = "\n".join(data[k : k + 76] for k in range(0, len(data), 76))
    url_safe = data.replace("+", "-").replace("/", "_").rstrip("=")
    kinds = ["dog", " dog ", str(DOG), str(spaced), str(link), DOG.as_uri(), spaced.as_uri(), data, lines, url_safe]
    kinds += [f"data:image/jpeg;base64,{data}", f"DATA:;base64,{lines}"]
    for kind in kinds:
        assert Path(read_image(kind, local=True).path).read_bytes() == DOG.read_bytes(), kind[:40]
    for result in call(address, ("explain", {"image": "dog"}), ("explain", {"image": str(spaced)})):
        answer = text(result)
        assert answer["target"]["name"] == "German shepherd"
        assert "tmp" not in json.dumps(answer) and str(DOG.parent) not in json.dumps(answer)
        (overlay,) = images(result)
        assert min(overlay.size) >= 224


def test_an_array_of_bands_can_be_passed(address, tmp_path):
    bands = tmp_path / "bands.npy"
    np.save(bands, np.random.default_rng(0).random((5, 64, 64), np.float32))
    by_path, by_data = call(
        address,
        ("explain", {"image": str(bands), "bands": "3,2,1"}),
        ("explain", {"image": encoded(bands), "bands": "3,2,1"}),
    )
    assert text(by_path)["bands"]["count"] == 5
    assert text(by_path)["predictions"] == text(by_data)["predictions"]


def test_structured_content_is_the_text(address):
    """The client has checked it against the schema of the tool."""
    results = call(
        address,
        ("explain", {"image": "dog", "target": "malinois", "method": "saliency", "options": None}),
        ("explain", {"image": "dog", "target": 225, "layer": "stages.4", "method": "layer_cam"}),
        ("explain", {"image": "dog", "target": "channel 12 of head"}),
        ("explain", {"image": "dog", "method": "token_pca"}),
        ("feature_maps", {"image": "dog", "channels": [3, 5], "layer": "stages.1"}),
        ("list_models", {}),
        ("list_models", {"name": "efficientnet_lite0"}),
        ("list_layers", {}),
        ("list_methods", {}),
        ("list_methods", {"name": "occlusion"}),
    )
    for result in results:
        assert result.structured_content == text(result)
    assert text(results[0])["target"]["name"] == text(results[1])["target"]["name"] == "malinois"
    assert text(results[1])["shape"] == [14, 14]
    assert text(results[2])["target"] == {"index": None, "name": "channel 12 of head", "probability": None}


def test_feature_maps_are_an_image_with_one_tile_per_channel(address):
    some, two, last, by_effect = call(
        address,
        ("feature_maps", {"image": "coffee"}),
        ("feature_maps", {"image": "coffee", "channels": [5, 3], "layer": "stages.4"}),
        ("feature_maps", {"image": "coffee", "count": 100 - 36, "layer": "stages.4", "sort": "number"}),
        ("feature_maps", {"image": "coffee", "count": 3, "layer": "stages.4", "sort": "effect"}),
    )
    answer = text(some)
    assert (answer["layer"], answer["total"], answer["grid"]) == ("head", 1280, [7, 7])
    means = [channel["mean"] for channel in answer["channels"]]
    assert len(means) == 16 and means == sorted(means, reverse=True)
    assert all(each["min"] <= each["mean"] <= each["max"] for each in answer["channels"])
    assert [each["number"] for each in text(two)["channels"]] == [5, 3]
    assert [each["number"] for each in text(last)["channels"]] == list(range(64))
    effects = [each["effect"] for each in text(by_effect)["channels"]]
    assert effects == sorted(effects, reverse=True) and text(by_effect)["target"]["name"] == "espresso"
    sizes = [images(result)[0].size for result in (some, two, last)]
    assert sizes[0][0] > 400 and sizes[1][0] < sizes[0][0] < sizes[2][0] and sizes[1][1] < sizes[0][1] < sizes[2][1]
    assert len(some.content[-1].text) < 2_000


def test_lists_are_short_and_have_all_names(address):
    methods, models, layers = call(address, ("list_methods", {}), ("list_models", {}), ("list_layers", {}))
    assert len(methods.content[0].text) < 4_000
    assert len(models.content[0].text) < 2_500
    assert len(layers.content[0].text) < 1_000
    answer = text(methods)
    named = [name for group in answer["groups"] for name in group["methods"]] + answer["cautions"]
    assert len(named) == len(set(named)) >= 60 and {"grad_cam", "lime", "integrated_gradients"} < set(named)
    assert answer["default"] == "grad_cam"
    tasks = {group["task"]: group for group in text(models)["tasks"]}
    assert (
        tasks["classification"]["ready"] == ["efficientnet_lite0"] and text(models)["default"] == "efficientnet_lite0"
    )
    assert [layer["name"] for layer in text(layers)["layers"]][-1] == text(layers)["default"] == "head"
    assert text(layers)["total"] > 100


def test_lists_can_be_filtered(address):
    cautioned, shap, convolutions, one, method, model = call(
        address,
        ("list_methods", {"filter": "saliency"}),
        ("list_methods", {"filter": "Baselines SHAP"}),
        ("list_layers", {"filter": "conv2d"}),
        ("list_layers", {"filter": "stages.2.0"}),
        ("list_methods", {"name": "rise"}),
        ("list_models", {"name": "efficientnet_lite0"}),
    )
    assert "saliency" in [name for group in text(cautioned)["groups"] for name in group["methods"]]
    assert "saliency" in text(cautioned)["cautions"]
    assert {"gradient_shap"} <= {name for group in text(shap)["groups"] for name in group["methods"]}
    found = text(convolutions)
    assert len(found["layers"]) == 40 and found["omitted"] > 0
    assert all("conv2d" in (layer["name"] + layer["kind"]).lower() for layer in found["layers"])
    assert all("stages.2.0" in layer["name"] for layer in text(one)["layers"])
    details = text(method)["details"]
    assert details["paper"] and "samples" in {option["name"] for option in details["options"]}
    assert text(model)["details"]["accuracy"] == 75.1


WRONG_IMAGES = [
    ("", "image is empty"),
    ("cofee", "Did you mean coffee?"),
    ("no such thing", "Pass an example's name"),
    ("https://example.org/dog.jpg", "Links are not supported"),
    ("data:image/png,%3Csvg%3E", "not valid base64"),
    ("data:image/png;base64,", "not valid base64"),
    ("data:image/png;base64,???", "not valid base64"),
    (encoded(DOG)[:40_000].replace("A", "!"), "not valid base64"),
    (base64.b64encode(b"<svg/>" * 20).decode(), "an SVG drawing"),
    (base64.b64encode(b"%PDF-1.4" * 20).decode(), "a PDF document"),
    (encoded(DOG)[:4_000], "damaged or truncated"),
    ("/etc/passwd", "not the name of an image"),
    ("~/.ssh/id_rsa", "not the name of an image"),
    ("file:///etc/passwd", "not the name of an image"),
    ("file://host/share/dog.jpg", "not absolute"),
    ("//host/share/dog.jpg", "not absolute"),
    ("dog.jpg", "not absolute"),
    ("../dog.jpg", "not absolute"),
    ("/no/such/dog.jpg", "does not exist"),
    ("/no/such\0/dog.jpg", "does not exist"),
]


def test_wrong_images_get_one_line(address):
    found = errors(address, *(("explain", {"image": image}) for image, _ in WRONG_IMAGES))
    for (image, message), given in zip(WRONG_IMAGES, found, strict=True):
        assert message in given, image[:40]


def test_only_image_files_are_read(address, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("password: 1234")
    renamed = tmp_path / "renamed.png"
    renamed.write_text("password: 1234")
    (tmp_path / "link.png").symlink_to(secret)
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    os.truncate(tmp_path / "large.png", 40 * 2**20)
    for name, message in {
        "secret.txt": "not the name of an image",
        "renamed.png": "not an image",
        "link.png": "not an image",
        "folder.png": "does not exist",
        "pipe.png": "does not exist",
        "large.png": "The maximum is 32 MB",
    }.items():
        (found,) = errors(address, ("feature_maps", {"image": str(tmp_path / name)}))
        assert message in found and "1234" not in found


WRONG_ARGUMENTS = [
    ("explain", {}, "explain needs image: an example's name"),
    ("explain", {"imag": "dog"}, "Did you mean image?"),
    ("explain", {"image": 5}, "image must be a string, got 5"),
    ("explain", {"image": ["dog"]}, "image must be a string"),
    ("explain", {"image": "dog", "options": "x"}, "options must be an object"),
    ("explain", {"image": "dog", "options": {"no_such": 1}}, "no_such"),
    ("explain", {"image": "dog", "options": {"relu": "maybe"}}, "relu"),
    ("explain", {"image": "dog", "method": "grad_cm"}, "Did you mean grad_cam"),
    ("explain", {"image": "dog", "method": True}, "method must be a string"),
    ("explain", {"image": "dog", "model": "resnet_50"}, "resnet50"),
    ("explain", {"image": "dog", "model": "x" * 1000}, "at most 500 characters"),
    ("explain", {"image": "dog", "layer": "haed"}, "Did you mean head"),
    ("explain", {"image": "dog", "target": "germn shepherd"}, "German shepherd"),
    ("explain", {"image": "dog", "target": 1000}, "1000"),
    ("explain", {"image": "dog", "target": 1.5}, "target must be a string or an integer, got 1.5"),
    ("explain", {"image": "dog", "target": True}, "target must be a string or an integer"),
    ("feature_maps", {"image": "dog", "channels": "3"}, "channels must be a list of integers"),
    ("feature_maps", {"image": "dog", "channels": [1, "a"]}, "channels must be a list of integers"),
    ("feature_maps", {"image": "dog", "channels": [1280]}, "integers from 0 to 1279"),
    ("feature_maps", {"image": "dog", "channels": [-1]}, "integers from 0 to 1279"),
    ("feature_maps", {"image": "dog", "channels": list(range(65))}, "from 1 to 64 channels, got 65"),
    ("feature_maps", {"image": "dog", "count": 0}, "from 1 to 64 channels, got 0"),
    ("feature_maps", {"image": "dog", "sort": "name"}, "activation, effect, number"),
    ("list_models", {"name": "efficientnet_lite"}, "efficientnet_lite0"),
    ("list_models", {"filter": "no such model"}, "No model matches"),
    ("list_models", {"filter": 3}, "filter must be a string"),
    ("list_layers", {"filter": "haed"}, "Did you mean head"),
    ("list_layers", {"model": "no_such"}, "no_such"),
    ("list_methods", {"filter": "grad_cma"}, "Did you mean grad_cam"),
    ("list_methods", {"name": "attention_rollout"}, "Attention rollout"),
    ("list_methods", {"layer": "head"}, "Available: model, filter, name"),
    ("explian", {}, "Did you mean explain?"),
]


def test_wrong_arguments_get_one_line(address):
    found = errors(address, *((tool, arguments) for tool, arguments, _ in WRONG_ARGUMENTS))
    for (tool, arguments, message), given in zip(WRONG_ARGUMENTS, found, strict=True):
        assert message in given, (tool, arguments)


def test_a_slash_at_the_end_makes_no_difference(address):
    import httpx

    (result,) = call(address, ("explain", {"image": f"data:image/jpeg;base64,{encoded(DOG)}"}), path="/mcp/")
    assert text(result)["target"]["name"] == "German shepherd"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for path in ("/mcp", "/mcp/"):
        response = httpx.post(f"{address}{path}", json=body, headers=HEADERS, follow_redirects=False)
        assert response.status_code == 200 and len(response.json()["result"]["tools"]) == len(TOOLS)


def test_no_stream_is_kept_open(address):
    """The server sends no messages of its own; a stream would stay open and delay its end."""
    import httpx

    for path in ("/mcp", "/mcp/"):
        response = httpx.get(f"{address}{path}", headers=HEADERS, timeout=10)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_older_clients_are_answered(address, version):
    me = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    started = post(address, "initialize", me)
    assert started["protocolVersion"] == version and "explain" in started["instructions"]
    found = post(
        address, "tools/call", {"name": "explain", "arguments": {"image": "dog"}}, mcp_protocol_version=version
    )
    assert found["structuredContent"]["target"]["name"] == "German shepherd"


def test_two_clients_at_once_get_their_own_answers(address):
    names = ["dog", "coffee"] * 2

    def target(name: str) -> str:
        return str(text(call(address, ("explain", {"image": name}))[0])["target"]["name"])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(target, names)) == ["German shepherd", "espresso"] * 2


def test_an_image_that_is_stored_again_can_be_read_meanwhile():
    whole, stop = DOG.stat().st_size, threading.Event()

    def store() -> None:
        while not stop.is_set():
            read_image("dog", local=False)

    path = Path(read_image("dog", local=False).path)
    with ThreadPoolExecutor(1) as pool:
        storing = pool.submit(store)
        sizes = {len(path.read_bytes()) for _ in range(2_000)}
        stop.set()
        storing.result()
    assert sizes == {whole}


def test_paths_of_a_request_through_a_proxy_are_not_read(address):
    arguments = {"name": "explain", "arguments": {"image": str(DOG)}}
    assert not post(address, "tools/call", arguments).get("isError")
    for headers in ({"x_forwarded_for": "127.0.0.1"}, {"via": "1.1 proxy"}):
        found = post(address, "tools/call", arguments, **headers)
        assert found["isError"] and "The path was not read" in found["content"][0]["text"]


def test_a_page_for_others_reads_no_paths(tmp_path):
    """A proxy may pass the name of the page on."""
    with served(tmp_path, "app.py", "--mcp", SALISCOPE_HOSTS="example.org") as public:
        refused, missing, example = call(
            public,
            ("explain", {"image": str(DOG)}),
            ("explain", {"image": "/no/such/file.png"}),
            ("explain", {"image": "coffee"}),
        )
        assert post(public, "tools/list", {}, host="example.org")["tools"]
        found = post(public, "tools/call", {"name": "explain", "arguments": {"image": str(DOG)}}, host="example.org")
    assert "The path was not read" in found["content"][0]["text"]
    assert refused.is_error and "The path was not read" in refused.content[0].text
    assert missing.content == refused.content  # whether the file exists stays unknown
    assert text(example)["target"]["name"] == "espresso"


@pytest.mark.parametrize(
    ("host", "variables", "expected"),
    [
        ("127.0.0.1", {}, True),
        ("0.0.0.0", {}, False),
        (None, {"GRADIO_SERVER_NAME": "0.0.0.0"}, False),
        ("127.0.0.1", {"SALISCOPE_HOSTS": "example.org"}, False),
        ("127.0.0.1", {"SPACE_ID": "me/page"}, False),
    ],
)
def test_only_a_page_for_this_machine_marks_requests_as_local(host, variables, expected, monkeypatch):
    marks = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        marks.append(scope[access.MARK])

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    scope = {"type": "http", "client": ("127.0.0.1", 5), "headers": [(b"host", b"127.0.0.1:7860")]}
    finished(access.MarkLocal(app, access.served_host(host))(scope, None, None))
    assert marks == [expected]


def test_a_remote_path_is_not_even_looked_at(monkeypatch):
    def touched(*_: object) -> bool:
        raise AssertionError("the file system was read")

    for name in ("isfile", "exists", "expanduser"):
        monkeypatch.setattr(os.path, name, touched)
    for path in ("/etc/passwd", "~/dog.jpg", "dog.jpg", "file:///dog.jpg", "C:\\dog.jpg", "\\\\host\\dog.jpg"):
        with pytest.raises(Refused, match="The path was not read"):
            read_image(path, local=False)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"client": ("::1", 1), "headers": [(b"host", b"[::1]:7860")]}, True),
        ({"client": ("::ffff:127.0.0.1", 1), "headers": [(b"host", b"localhost")]}, True),
        ({"client": ("192.168.1.5", 1)}, False),
        ({"client": ("::ffff:10.0.0.1", 1)}, False),
        ({"client": ("localhost.example.org", 1)}, False),
        ({"client": None}, False),
        ({"headers": []}, False),
        ({"headers": [(b"host", b"127.0.0.1"), (b"host", b"example.org")]}, False),
        ({"headers": [(b"host", b"127.0.0.1.example.org")]}, False),
        ({"headers": [(b"host", b"example.org:7860")]}, False),
        *(
            ({"headers": [(b"host", b"127.0.0.1"), (name, b"127.0.0.1")]}, False)
            for name in (
                b"X-Forwarded-For",
                b"x-forwarded-host",
                b"forwarded",
                b"via",
                b"x-real-ip",
                b"cf-connecting-ip",
            )
        ),
    ],
)
def test_which_requests_come_from_this_machine(change, expected):
    scope = {"client": ("127.0.0.1", 50_000), "headers": [(b"host", b"127.0.0.1:7860")], **change}
    assert access.is_direct(scope) is expected


def test_which_addresses_are_only_this_machine():
    assert all(map(access.is_loopback, ("127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]", "::ffff:127.0.0.1")))
    assert not any(map(access.is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "", None, "localhost.example")))


def test_the_calls_of_the_guide_work(address, capsys):
    guide = (examples.ASSETS.parent / "docs" / "agents.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| `(\w+)` \| `(\{.*\})` \|$", guide, re.M)
    calls = [(tool, json.loads(arguments.replace("/home/me/dog.jpg", "dog"))) for tool, arguments in rows]
    assert len(calls) >= 8
    for result in call(address, *calls):
        assert text(result)

    (block,) = re.findall(r"```python\n(.*?)```", guide, re.S)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(exec, block.replace("http://127.0.0.1:7860", address), {}).result()
    assert capsys.readouterr().out.strip() == re.findall(r"print\(.*# (.*)", block)[0]


def test_the_settings_of_clients_in_the_guide_are_json():
    guide = (examples.ASSETS.parent / "docs" / "agents.md").read_text(encoding="utf-8")
    found = [json.loads(each) for each in re.findall(r"`(\{\"(?:mcpServers|servers)\".*?\})`", guide)]
    assert len(found) == 4 and all("http://127.0.0.1:7860/mcp" in json.dumps(each) for each in found)


def test_requests_from_other_sites_are_refused(address):
    import httpx

    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for path in ("/mcp", "/mcp/"):
        for other in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            found = httpx.post(f"{address}{path}", json=body, headers=HEADERS | other)
            assert found.status_code in (403, 421)


def test_without_the_package_the_command_names_it(monkeypatch):
    import sys

    from saliscope.page.agents.server import Agents

    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    with pytest.raises(Refused, match=r"needs the package mcp, .*pip install \"saliscope\[mcp\] @ git\+"):
        Agents()
