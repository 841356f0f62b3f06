"""The tools for agents, called by a real client over the Model Context Protocol."""

from __future__ import annotations

import base64
import io
import json
import os
import re
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
from tests.support.coroutines import finished

pytest.importorskip("mcp", reason="mcp is not installed: pip install mcp")
DOG = examples.ASSETS / "examples" / "dog.jpg"
GUIDE = examples.ASSETS.parent / "docs" / "agents.md"
TOOLS = {"explain", "feature_maps", "list_models", "list_layers", "list_methods"}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@pytest.fixture(scope="module")
def address(app: str) -> str:
    return app


def call(address: str, tool: str, *arguments: dict[str, Any]) -> list[Any]:
    """Call a tool with one client, and return its results; without a name, the tools.

    The client checks the structured content of a result against the schema of its tool.
    """
    from mcp import Client

    async def run() -> list[Any]:
        async with Client(f"{address}/mcp") as client:
            tools = list((await client.list_tools()).tools)
            return [await client.call_tool(tool, each) for each in arguments] if tool else tools

    return finished(run())


def message(method: str, **parameters: Any) -> dict[str, Any]:
    """One message of the protocol."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}


def post(address: str, sent: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Send one message of the protocol as older clients do, and return its result."""
    import httpx

    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.post(f"{address}/mcp", json=sent, headers=HEADERS | named, timeout=120)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()["result"]
    return result


def text(result: Any) -> Any:
    """The answer of a tool, which programs get as structured content too."""
    assert not result.is_error, result.content[0].text
    answer = json.loads(next(part.text for part in result.content if part.type == "text"))
    assert result.structured_content == answer
    return answer


def error(result: Any) -> str:
    """The message of a call that fails: one line, without anything internal."""
    assert result.is_error and result.structured_content is None
    (part,) = result.content
    for internal in ("Traceback", "pydantic", "Error executing", "saliscope.", 'File "', "gradio/", "\n"):
        assert internal not in part.text
    assert len(part.text) < 400
    return str(part.text)


def image(result: Any) -> Image.Image:
    """The image of an answer, in the format that it declares."""
    (part,) = [part for part in result.content if part.type == "image"]
    found = Image.open(io.BytesIO(base64.b64decode(part.data)))
    assert part.mime_type == f"image/{str(found.format).lower()}"
    return found


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


# Tools and their answers


def test_every_tool_and_argument_is_described(address: str) -> None:
    import jsonschema

    tools = {tool.name: tool for tool in call(address, "")}
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert tool.title == tool.annotations.title and tool.description and tool.annotations.read_only_hint
        assert all(argument["description"] for argument in tool.input_schema["properties"].values())
        for schema in (tool.input_schema, tool.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
        assert len(tool.model_dump_json(by_alias=True, exclude_none=True)) < 4_000
    assert tools["explain"].input_schema["required"] == ["image"]
    described = tools["explain"].input_schema["properties"]["image"]["description"]
    assert all(name in described for name in examples.all_examples())


def test_explanations_have_the_overlay_and_the_answer(address: str, tmp_path: Path) -> None:
    bands = tmp_path / "bands.npy"
    np.save(bands, np.random.default_rng(0).random((5, 64, 64), np.float32))
    settings: list[dict[str, Any]] = [
        {"image": str(DOG)},
        {"image": "dog", "target": "malinois", "method": "saliency", "options": None},
        {"image": "dog", "target": 225},
        {"image": "dog", "target": "channel 12 of head"},
        {"image": "dog", "method": "token_pca"},
        *({"image": each, "bands": "3,2,1"} for each in (str(bands), encoded(bands))),
    ]
    results = call(address, "explain", *settings)
    answers = [text(each) for each in results]
    assert [each["target"]["name"] for each in answers[:3]] == ["German shepherd", "malinois", "malinois"]
    assert answers[3]["target"] == {"index": None, "name": "channel 12 of head", "probability": None}
    assert min(image(results[0]).size) >= 224
    assert "tmp" not in json.dumps(answers) and str(DOG.parent) not in json.dumps(answers)
    assert answers[5]["bands"]["count"] == 5 and answers[5]["predictions"] == answers[6]["predictions"]


def test_feature_maps_are_an_image_with_one_tile_per_channel(address: str) -> None:
    asked: list[dict[str, Any]] = [{}, {"channels": [5, 3]}, {"count": 64, "sort": "number"}, {"sort": "effect"}]
    more = {"image": "coffee", "layer": "stages.4"}
    some, two, last, by_effect = call(address, "feature_maps", *({**more, **each} for each in asked))
    answer = text(some)
    assert (answer["layer"], answer["total"], answer["grid"]) == ("stages.4", 112, [14, 14])
    means = [channel["mean"] for channel in answer["channels"]]
    assert len(means) == 16 and means == sorted(means, reverse=True)
    assert [each["number"] for each in text(two)["channels"]] == [5, 3]
    assert [each["number"] for each in text(last)["channels"]] == list(range(64))
    effects = [each["effect"] for each in text(by_effect)["channels"]]
    assert effects == sorted(effects, reverse=True) and text(by_effect)["target"]["name"] == "espresso"
    (two_wide, two_high), (wide, high), (last_wide, last_high) = (image(each).size for each in (two, some, last))
    assert two_wide < wide < last_wide and two_high < high < last_high and wide > 400
    assert len(some.content[-1].text) < 2_000


def test_lists_are_short_and_can_be_filtered(address: str) -> None:
    asked = {"list_methods": 4_000, "list_models": 2_500, "list_layers": 1_000}
    results = [call(address, name, {})[0] for name in asked]
    assert all(len(result.content[0].text) < most for result, most in zip(results, asked.values(), strict=True))
    methods, models, layers = map(text, results)
    named = [name for group in methods["groups"] for name in group["methods"]] + methods["cautions"]
    assert len(named) == len(set(named)) >= 60 and {"grad_cam", "lime", "integrated_gradients"} < set(named)
    tasks = {group["task"]: group for group in models["tasks"]}
    assert "efficientnet_lite0" in tasks["classification"]["ready"] and models["default"] == "efficientnet_lite0"
    assert layers["layers"][-1]["name"] == layers["default"] == "head" and layers["total"] > 100

    filters = ({"filter": "saliency"}, {"filter": "Baselines SHAP"}, {"name": "rise"})
    cautioned, shap, rise = map(text, call(address, "list_methods", *filters))
    assert any("saliency" in group["methods"] for group in cautioned["groups"]) and "saliency" in cautioned["cautions"]
    assert any("gradient_shap" in group["methods"] for group in shap["groups"])
    assert rise["details"]["paper"] and "samples" in {option["name"] for option in rise["details"]["options"]}
    (convolutions,) = map(text, call(address, "list_layers", {"filter": "conv2d"}))
    assert len(convolutions["layers"]) == 40 and convolutions["omitted"] > 0


def test_the_calls_and_settings_of_the_guide_work(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    guide = GUIDE.read_text(encoding="utf-8").replace('"window": 48}', '"window": 48, "stride": 44}')  # fewer passes
    rows = re.findall(r"^\|[^|]*\| `(\w+)` \| `(\{.*\})` \|$", guide, re.M)
    assert len(rows) >= 8
    for tool, arguments in rows:
        assert all(map(text, call(address, tool, json.loads(arguments.replace("/home/me/dog.jpg", "dog")))))

    (block,) = re.findall(r"```python\n(.*?)```", guide, re.S)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(exec, block.replace("http://127.0.0.1:7860", address), {}).result()
    assert capsys.readouterr().out.strip() == re.findall(r"print\(.*# (.*)", block)[0]
    settings = [json.loads(each) for each in re.findall(r"`(\{\"(?:mcpServers|servers)\".*?\})`", guide)]
    assert len(settings) == 4 and all("http://127.0.0.1:7860/mcp" in json.dumps(each) for each in settings)


# Wrong arguments

WRONG_IMAGES = {
    "": "image is empty",
    "cofee": "Did you mean coffee?",
    "https://example.org/dog.jpg": "Links are not supported",
    "data:image/png;base64,???": "not valid base64",
    encoded(DOG)[:40_000].replace("A", "!"): "not valid base64",
    base64.b64encode(b"<svg/>" * 20).decode(): "an SVG drawing",
    encoded(DOG)[:4_000]: "damaged or truncated",
    "~/.ssh/id_rsa": "not the name of an image",
    "file:///etc/passwd": "not the name of an image",
    "file://host/share/dog.jpg": "not absolute",
    "//host/share/dog.jpg": "not absolute",
    "/no/such/dog.jpg": "does not exist",
    "/no/such\0/dog.jpg": "does not exist",
}


def test_only_image_files_are_read(address: str, tmp_path: Path) -> None:
    for name in ("secret.txt", "renamed.png"):
        (tmp_path / name).write_text("password: 1234")
    (tmp_path / "link.png").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    os.truncate(tmp_path / "large.png", 40 * 2**20)
    files = {"secret.txt": "not the name of an image", "large.png": "The maximum is 32 MB"}
    files |= dict.fromkeys(("renamed.png", "link.png"), "not an image")
    files |= dict.fromkeys(("folder.png", "pipe.png"), "does not exist")
    wrong = WRONG_IMAGES | {str(tmp_path / name): reason for name, reason in files.items()}
    results = call(address, "explain", *({"image": name} for name in wrong))
    for (name, reason), result in zip(wrong.items(), results, strict=True):
        assert reason in error(result) and "1234" not in error(result), name[:40]


WRONG_ARGUMENTS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "explain": [
        ({}, "explain needs image: an example's name"),
        ({"imag": "dog"}, "Did you mean image?"),
        ({"image": "dog", "options": "x"}, "options must be an object"),
        ({"image": "dog", "model": "x" * 1000}, "at most 500 characters"),
        ({"image": "dog", "target": True}, "target must be a string or an integer"),
    ],
    "feature_maps": [
        ({"image": "dog", "channels": [1, "a"]}, "channels must be a list of integers"),
        ({"image": "dog", "channels": list(range(65))}, "from 1 to 64 channels, got 65"),
        ({"image": "dog", "sort": "name"}, "activation, effect, number"),
    ],
    "list_models": [({"name": "efficientnet_lite"}, "efficientnet_lite0"), ({"filter": "no such"}, "No model matches")],
    "list_layers": [({"filter": "haed"}, "Did you mean head")],
    "list_methods": [({"filter": "grad_cma"}, "Did you mean grad_cam")],
    "explian": [({}, "Did you mean explain?")],
}


def test_wrong_arguments_get_one_line(address: str) -> None:
    for tool, wrong in WRONG_ARGUMENTS.items():
        results = call(address, tool, *(arguments for arguments, _ in wrong))
        for (arguments, reason), result in zip(wrong, results, strict=True):
            assert reason in error(result), (tool, arguments)


# The protocol


def test_older_clients_are_answered_with_and_without_a_slash_at_the_end(address: str) -> None:
    """No stream is open: the server sends no messages of its own, and a stream would delay its end."""
    import httpx

    client = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    assert "explain" in post(address, message("initialize", **client))["instructions"]
    dog = message("tools/call", name="explain", arguments={"image": "dog"})
    found = post(address, dog, mcp_protocol_version="2024-11-05")
    assert found["structuredContent"]["target"]["name"] == "German shepherd"
    for path in ("/mcp", "/mcp/"):
        asked = httpx.post(f"{address}{path}", json=message("tools/list"), headers=HEADERS, follow_redirects=False)
        assert asked.status_code == 200
        stream = httpx.get(f"{address}{path}", headers=HEADERS, timeout=10)
        assert (stream.status_code, stream.headers["allow"]) == (405, "POST")
        for other in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            refused = httpx.post(f"{address}{path}", json=message("tools/list"), headers=HEADERS | other)
            assert refused.status_code in (403, 421)


# Images: an example, base64 or a data URL, and a path for programs of this machine


def test_an_image_may_be_an_example_a_path_base64_or_a_data_url(tmp_path: Path) -> None:
    data = encoded(DOG)
    spaced = tmp_path / "my dog (1).JPG"
    spaced.symlink_to(DOG)
    lines = "\n".join(data[start : start + 76] for start in range(0, len(data), 76))
    url_safe = data.replace("+", "-").replace("/", "_").rstrip("=")
    kinds = [" dog ", str(DOG), str(spaced), spaced.as_uri(), lines, url_safe]
    kinds += [f"data:image/jpeg;base64,{data}", f"DATA:;base64,{lines}"]
    for kind in kinds:
        assert Path(read_image(kind, local=True).path).read_bytes() == DOG.read_bytes(), kind[:40]


def test_the_length_of_a_text_separates_names_paths_and_base64() -> None:
    long, path = "A" * 68, "/" + "A" * 1023
    for text, reason in (
        ("!" * 64, "Unknown image"), ("A" * 64, "Unknown image"), ("!" * 65, "not valid base64"),
        (path, "The path was not read"), (f"{path}!", "not valid base64"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=reason):
            read_image(text, local=False)
    assert Path(read_image(long, local=False).path).read_bytes() == base64.b64decode(long), "for the decoder"


def test_an_image_that_is_stored_again_can_be_read_meanwhile() -> None:
    path = Path(read_image("dog", local=False).path)
    with ThreadPoolExecutor(1) as pool:
        storing = [pool.submit(read_image, "dog", local=False) for _ in range(500)]
        sizes = {len(path.read_bytes()) for _ in range(2_000)}
    assert sizes == {DOG.stat().st_size} and all(each.result() for each in storing)


def test_a_remote_path_is_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("isfile", "exists", "expanduser"):
        monkeypatch.setattr(os.path, name, lambda *_: pytest.fail("the file system was read"))
    for path in ("/etc/passwd", "~/dog.jpg", "dog.jpg", "file:///dog.jpg", "C:\\dog.jpg", "\\\\host\\dog.jpg"):
        with pytest.raises(Refused, match="The path was not read"):
            read_image(path, local=False)


def test_paths_of_a_request_through_a_proxy_are_not_read(address: str) -> None:
    sent = message("tools/call", name="explain", arguments={"image": str(DOG)})
    assert not post(address, sent).get("isError")
    for headers in ({"x_forwarded_for": "127.0.0.1"}, {"via": "1.1 proxy"}):
        found = post(address, sent, **headers)
        assert found["isError"] and "The path was not read" in found["content"][0]["text"]


def test_only_a_page_for_this_machine_reads_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may pass the name of the page on; whether a file exists stays unknown."""
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from saliscope.page.agents.server import Agents

    def answers(host: str | None, name: str = "127.0.0.1:7860", **variables: str) -> set[str]:
        """What an agent of this machine gets for a file that exists and for one that does not."""
        paths = ("/no/file.png", str(GUIDE))
        asked = [message("tools/call", name="explain", arguments={"image": path}) for path in paths]
        with monkeypatch.context() as patch:
            for variable, value in variables.items():
                patch.setenv(variable, value)
            agents = Agents(host)
            app = Starlette(routes=agents.routes, middleware=[agents.middleware], lifespan=agents.lifespan)
            with TestClient(app, client=("127.0.0.1", 5), headers={**HEADERS, "host": name}) as client:
                results = [client.post("/mcp", json=each).json()["result"] for each in asked]
        assert all(result["isError"] for result in results)
        return {result["content"][0]["text"] for result in results}

    here = answers("127.0.0.1")
    assert len(here) == 2 and not any("The path was not read" in each for each in here)
    (public,) = answers("0.0.0.0")
    assert "The path was not read" in public
    assert answers(None, GRADIO_SERVER_NAME="0.0.0.0") == {public}
    for name in ("127.0.0.1:7860", "example.org"):
        assert answers("127.0.0.1", name, SALISCOPE_HOSTS="example.org") == {public}
    assert answers("127.0.0.1", SPACE_ID="me/page") == {public}


DIRECT = {"client": ("127.0.0.1", 50_000), "headers": [(b"host", b"127.0.0.1:7860")]}
LOCAL: list[dict[str, Any]] = [
    {},
    {"client": ("::1", 1), "headers": [(b"host", b"[::1]:7860")]},
    {"client": ("::ffff:127.0.0.1", 1), "headers": [(b"host", b"localhost")]},
]
CLIENTS = (("::ffff:10.0.0.1", 1), ("localhost.example.org", 1), None)
REMOTE: list[dict[str, Any]] = [{"client": client} for client in CLIENTS]
REMOTE += [{"headers": [(b"host", b"127.0.0.1.example.org")]}, {"headers": []}]
REMOTE += [{"headers": [(b"host", b"127.0.0.1"), (b"host", b"example.org")]}]
PROXIED = (b"X-Forwarded-For", b"x-forwarded-host", b"forwarded", b"via", b"x-real-ip", b"cf-connecting-ip")
REMOTE += [{"headers": [(b"host", b"127.0.0.1"), (name, b"127.0.0.1")]} for name in PROXIED]


def test_which_requests_and_addresses_are_of_this_machine() -> None:
    for change in LOCAL + REMOTE:
        assert access.is_direct({**DIRECT, **change}) is (change in LOCAL), change
    assert all(map(access.is_loopback, ("127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]", "::ffff:127.0.0.1")))
    assert not any(map(access.is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "", None, "localhost.example")))
