"""The tools for agents, called by a real client over the Model Context Protocol."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from saliscope.errors import Refused
from saliscope.images import examples
from tests.saliscope.browser.conftest import served

pytest.importorskip("mcp", reason="mcp is not installed: pip install mcp")
DOG = examples.ASSETS / "examples" / "dog.jpg"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("agents"), "app.py", "--mcp") as found:
        yield found


def call(address: str, *requests: tuple[str, dict[str, Any]]) -> list[Any]:
    """Call tools with one client, and return their results; without requests, the tools."""
    from mcp import Client

    async def run() -> list[Any]:
        async with Client(f"{address}/mcp") as client:
            if not requests:
                return list((await client.list_tools()).tools)
            return [await client.call_tool(name, arguments) for name, arguments in requests]

    # In its own thread, because the browser tests of the same process keep an event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result()


def text(result: Any) -> Any:
    return json.loads(next(part.text for part in result.content if part.type == "text"))


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_tools_are_listed_with_their_arguments(address):
    tools = {tool.name: tool for tool in call(address)}
    assert set(tools) == {"explain", "feature_maps", "list_models", "list_layers", "list_methods"}
    assert set(tools["explain"].input_schema["properties"]) >= {
        "image",
        "model",
        "method",
        "layer",
        "target",
        "options",
    }
    assert "base64" in tools["explain"].description


def test_an_image_is_explained_with_an_overlay_and_predictions(address):
    image = encoded(DOG)
    explained, features, methods = call(
        address,
        ("explain", {"image": image, "target": "malinois"}),
        ("feature_maps", {"image": f"data:image/jpeg;base64,{image}", "layer": "head", "channels": [3, 5]}),
        ("list_methods", {}),
    )
    answer = text(explained)
    assert answer["predictions"][0]["name"] == "German shepherd"
    assert answer["target"]["name"] == "malinois"
    assert answer["shape"] == [7, 7]
    (overlay,) = [part for part in explained.content if part.type == "image"]
    assert Image.open(io.BytesIO(base64.b64decode(overlay.data))).size[0] >= 224
    assert text(features)["channels"] == [3, 5]
    assert "grad_cam" in {method["name"] for method in text(methods)}
    assert "tmp" not in json.dumps(answer)  # no path of the server


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image": "not base64!"}, "image must be an image file as base64 text"),
        ({"image": ""}, "image must be an image file as base64 text"),
        ({"image": base64.b64encode(b"<svg/>").decode()}, "image"),
        ({"image": encoded(DOG), "method": "no_such"}, "no_such"),
        ({"image": encoded(DOG), "options": {"no_such": 1}}, "no_such"),
        ({"image": "/etc/passwd"}, "image must be an image file as base64 text"),
    ],
)
def test_wrong_arguments_get_one_line(address, arguments, message):
    (result,) = call(address, ("explain", arguments))
    assert result.is_error
    found = result.content[0].text
    assert message in found
    assert "Traceback" not in found
    assert len(found) < 400


def test_requests_from_other_sites_are_refused(address):
    import httpx

    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    assert (
        httpx.post(f"{address}/mcp", json=body, headers=headers | {"origin": "https://evil.example"}).status_code == 403
    )
    assert httpx.post(f"{address}/mcp", json=body, headers=headers | {"host": "evil.example"}).status_code in (403, 421)


def test_without_the_package_the_command_names_it(monkeypatch):
    import sys

    from saliscope.page.serving.agents import Agents

    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(Refused, match=r"needs the package mcp, .*pip install \"saliscope\[mcp\] @ git\+"):
        Agents()
