"""The endpoints as tools for agents, over the Model Context Protocol at /mcp (`saliscope serve --mcp`).

An agent sends an image as base64 text and receives the overlay as an image and the rest as text. The server keeps no
session. The tools call the functions of the API (endpoints.py), with the same limits.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from gradio.data_classes import FileData
from gradio.utils import get_upload_folder
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from saliscope import __version__, limits
from saliscope.errors import Refused
from saliscope.page.serving import endpoints
from saliscope.session import api_messages, engine, messages

PATH = "/mcp"
IMAGE = "image.png"


class Agents:
    """The tools, their route, and what runs while the server does.

    Errors   Refused if the package `mcp` is not installed
    """

    def __init__(self, host: str | None = None) -> None:
        try:
            from mcp.server.mcpserver import MCPServer  # an optional package
        except ImportError:
            raise Refused(api_messages.NO_MCP) from None
        self.server = MCPServer(
            "saliscope", version=__version__, instructions=api_messages.INSTRUCTIONS, log_level="ERROR"
        )
        for tool in (explain, feature_maps, list_models, list_layers, list_methods):
            self.server.add_tool(tool, description=tool.__doc__, structured_output=False)
        self._application = self.server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=limits.AGENT,
            host=host or "127.0.0.1",
        )

    @property
    def routes(self) -> list[BaseRoute]:
        """The route of the tools."""
        return list(self._application.routes)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Accept requests until the block ends."""
        async with self.server.session_manager.run():
            yield


async def explain(
    image: str,
    model: str = "",
    method: str = "",
    layer: str = "",
    target: str = "",
    options: dict[str, Any] | None = None,
    bands: str = "",
) -> Any:
    """Show what an image model looks at: returns the map over the image, predictions, statistics and warnings.

    image: the image file as base64. model, method, layer: names from list_models, list_methods and list_layers, empty
    for the default. target: a class name or index, empty for the top prediction. options: the options of the method by
    name. bands: bands shown as red, green and blue, such as "3,2,1", for images with more than three.
    """
    answer = await _answer(
        endpoints.explain, image, model=model, method=method, layer=layer, target=target, options=options, bands=bands
    )
    overlay = answer.pop("overlay")
    answer.pop("map")
    return [_text(answer)] if overlay is None else [_image(overlay), _text(answer)]


async def feature_maps(
    image: str, model: str = "", layer: str = "", channels: list[int] | None = None, sort: str = "activation"
) -> Any:
    """List the channels of a layer for an image, with the mean activation and the effect on the top class of each.

    image: the image file as base64. model, layer: names, empty for the default. channels: numbers of channels, empty
    for all. sort: "activation", "effect" or "number".
    """
    answer = await _answer(endpoints.feature_maps, image, model=model, layer=layer, channels=channels, sort=sort)
    answer.pop("maps")
    return [_text(answer)]


async def list_models() -> Any:
    """List the models: name, title, number of classes, size, accuracy, and whether each is downloaded."""
    return [_text(await _run(endpoints.list_models))]


async def list_layers(model: str = "") -> Any:
    """List the layers of a model that have maps, in call order. model: a name, empty for the default."""
    return [_text(await _run(partial(endpoints.list_layers, model)))]


async def list_methods(model: str = "", layer: str = "") -> Any:
    """List the methods that support a model at a layer, with their options. Empty names are the defaults."""
    return [_text(await _run(partial(endpoints.list_methods, model, layer)))]


async def _answer(function: Callable[..., Any], image: str, **settings: Any) -> dict[str, Any]:
    def call() -> Any:
        return function(_upload(image), **settings)

    answer: dict[str, Any] = await _run(call)
    return answer


@functools.cache
def _places() -> anyio.CapacityLimiter:
    """Return the places for running calls, created inside the event loop."""
    return anyio.CapacityLimiter(limits.PLACES["quick"])


async def _run(function: Callable[[], Any]) -> Any:
    """Call a function in a thread, as many at a time as the page allows; errors become one-line messages."""
    try:
        return await anyio.to_thread.run_sync(function, limiter=_places())
    except Exception as error:
        from mcp.server.mcpserver.exceptions import ToolError  # an optional package

        raise ToolError(engine.message_of(error, messages.UNKNOWN_TO_A_PROGRAM)) from None


def _upload(image: str) -> FileData:
    """Store an image as an upload, in the folder from which the page reads and deletes images.

    Errors   Refused if the text is not base64
    """
    text = image.partition(",")[2] if image[:5].lower() == "data:" else image
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise Refused(api_messages.NO_BASE64) from None
    if not data or len(data) > limits.FILE:
        raise Refused(api_messages.NO_BASE64)
    folder = Path(get_upload_folder()) / hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / IMAGE
    path.write_bytes(data)
    return FileData(path=str(path), orig_name=IMAGE)


def _image(file: FileData) -> Any:
    from mcp.types import ImageContent  # an optional package

    data = base64.b64encode(Path(file.path).read_bytes()).decode("ascii")
    return ImageContent(type="image", data=data, mime_type="image/png")


def _text(value: object) -> Any:
    from mcp.types import TextContent  # an optional package

    return TextContent(type="text", text=json.dumps(value, ensure_ascii=False))
