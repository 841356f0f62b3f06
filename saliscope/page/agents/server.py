"""The server of the tools (tools.py): their route, their errors, and where images may come from.

The server keeps no session, and runs in the application of the page: the same guard, limits and queue of computations.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from PIL import Image
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from saliscope import __version__, limits
from saliscope.compute import api_messages, engine
from saliscope.compute import messages as session_messages
from saliscope.errors import Refused
from saliscope.page.agents import access, messages
from saliscope.page.agents.sheet import encode
from saliscope.page.agents.tools import Tool, all_tools

PATH = "/mcp"


class Agents:
    """The tools, their route, and what runs while the server does.

    `host` is the address that the page is served at, by default this machine only.

    Errors   Refused if the package `mcp` is not installed
    """

    def __init__(self, host: str | None = None) -> None:
        try:
            from mcp.server.lowlevel import Server  # mcp is an extra
            from mcp.server.transport_security import TransportSecuritySettings
        except ImportError:
            raise Refused(api_messages.NO_MCP) from None
        self.host = host
        self.tools = {tool.name: tool for tool in all_tools()}
        self.server = Server(
            "saliscope",
            title=session_messages.TITLE,
            version=__version__,
            instructions=messages.INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._application = self.server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=limits.AGENT,
            # The guard checks hosts and origins of all routes, by the names of the page (serving/door/hosts.py).
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    @property
    def routes(self) -> list[BaseRoute]:
        """The route of the tools, with and without a slash at the end: a redirect could lose the body or the host."""
        endpoint = next(route.endpoint for route in self._application.routes if isinstance(route, Route))
        others = ["GET", "HEAD", "OPTIONS"]
        return [
            route
            for path in (PATH, f"{PATH}/")
            for route in (Route(path, endpoint, methods=["POST"]), Route(path, _refuse_stream, methods=others))
        ]

    @property
    def middleware(self) -> Middleware:
        """What must see a request before the guard."""
        return Middleware(access.MarkLocal, host=self.host)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Accept requests until the block ends."""
        async with self.server.session_manager.run():
            yield

    async def _list_tools(self, context: Any, parameters: Any) -> Any:
        from mcp.types import ListToolsResult  # mcp is an extra

        return ListToolsResult(tools=[_declare(tool) for tool in self.tools.values()])

    async def _call_tool(self, context: Any, parameters: Any) -> Any:
        """Call a tool in a thread, as many at a time as the page allows; any error becomes a message."""
        from mcp.types import CallToolResult, TextContent  # mcp is an extra

        local = context.request is not None and context.request.scope.get(access.MARK, False)
        try:
            tool = self.tools.get(parameters.name)
            if tool is None:
                raise Refused(messages.unknown_tool(parameters.name, self.tools))
            call = partial(tool, parameters.arguments or {}, local=local)
            images, answer = await anyio.to_thread.run_sync(call, limiter=_places())
        except Exception as error:
            text = engine.message_of(error, session_messages.UNKNOWN_TO_A_PROGRAM)
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        content = [*map(_image, images), TextContent(type="text", text=text)]
        return CallToolResult(content=content, structured_content=answer)


def _refuse_stream(_: Request) -> Response:
    """Refuse a stream for messages of the server, which sends none: it would stay open, and delay the server's end."""
    return Response(status_code=405, headers={"allow": "POST"})


@functools.cache
def _places() -> anyio.CapacityLimiter:
    """Return the limiter of calls that run at the same time; it must be created inside the event loop."""
    return anyio.CapacityLimiter(limits.PLACES["quick"])


def _declare(tool: Tool) -> Any:
    """Return a tool in the form of the protocol. A call changes nothing but the cache of weights."""
    from mcp import types  # mcp is an extra

    hints = types.ToolAnnotations(
        title=tool.title,
        read_only_hint=True,
        destructive_hint=False,
        idempotent_hint=True,
        open_world_hint=tool.downloads,
    )
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.schema,
        output_schema=tool.output,
        annotations=hints,
    )


def _image(image: Image.Image) -> Any:
    from mcp.types import ImageContent  # mcp is an extra

    data, kind = encode(image)
    return ImageContent(type="image", data=base64.b64encode(data).decode("ascii"), mime_type=kind)
