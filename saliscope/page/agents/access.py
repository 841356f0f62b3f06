"""Which requests come from a program of this machine, so that their images may be paths on it."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from saliscope.page.serving.door.hosts import address_of, name_of

MARK = "saliscope.local"
"""The key of a request that `MarkLocal` has seen."""
PROXY_HEADERS = {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip"}
"""What a proxy adds to the requests of others, besides the headers that start with one of `PROXY_PREFIXES`."""
PROXY_PREFIXES = (b"x-forwarded-", b"cf-", b"x-envoy-", b"x-original-")


def is_loopback(host: Any) -> bool:
    """Return whether a host is this machine, reached only from itself; other names are not looked up."""
    if not isinstance(host, str):
        return False
    address = address_of(host.strip("[]"))
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


class MarkLocal:
    """Middleware that marks requests of programs on this machine, for a page that is served at a loopback address.

    It must come before the guard, which removes headers of proxies: requests through a proxy are not marked, since they
    may come from anywhere. A page with names of a proxy (SALISCOPE_HOSTS) and a Space get no marks at all. `host` is an
    option; without it, Gradio reads a variable, and serves this machine only by default.
    """

    def __init__(self, app: ASGIApp, host: str | None) -> None:
        self.app, variables = app, os.environ
        names = variables.get("SALISCOPE_HOSTS", "").replace(",", " ").strip()
        served = host or variables.get("GRADIO_SERVER_NAME") or "127.0.0.1"
        self._possible = is_loopback(served) and not names and not variables.get("SPACE_ID")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            scope = {**scope, MARK: self._possible and is_direct(scope)}
        await self.app(scope, receive, send)


def is_direct(scope: MutableMapping[str, Any]) -> bool:
    """Return whether a request comes from this machine, is addressed to it, and shows no sign of a proxy."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
    names = {name.lower() for name, _ in scope["headers"]}
    if names & PROXY_HEADERS or any(name.startswith(PROXY_PREFIXES) for name in names):
        return False
    client = scope.get("client") or (None, 0)
    return len(hosts) == 1 and is_loopback(name_of(hosts[0])) and is_loopback(client[0])
