"""Check the argument names of API calls, because Gradio silently ignores unknown ones."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable
from typing import Any

ROUTES = re.compile(r"/gradio_api/(?:call|run|api)/(?P<named>v2/)?(?P<name>[a-z_]+)/?")
MESSAGE = {
    "data",
    "session_hash",
    "event_id",
    "event_data",
    "fn_index",
    "trigger_id",
    "batched",
    "simple_format",
    "request",
}
"""Other fields of a Gradio message; in version 2 of the route, arguments are at the same level."""
_known: dict[str, list[str]] = {}


def register(function: Callable[..., Any]) -> None:
    """Register the arguments of an endpoint."""
    _known[function.__name__] = list(inspect.signature(function).parameters)


def error_message(path: str, message: Any) -> str:
    """Return the error message for the arguments of a call, or an empty string."""
    route = ROUTES.fullmatch(path)
    if not route or route["name"] not in _known or not isinstance(message, dict):
        return ""
    name, known = route["name"], _known[route["name"]]
    unknown = sorted(message.keys() - MESSAGE - set(known if route["named"] else ()))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1, 0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        return f"{name} has no argument “{unknown[0][:60]}”.{hint} Available: {', '.join(known) or 'none'}."
    values = message.get("data")
    if not route["named"] and isinstance(values, list) and len(values) != len(known):
        order = f" Pass {', '.join(known)}, in this order. An empty string or null means the default." if known else ""
        return f"{name} takes {len(known)} arguments, got {len(values)}.{order}"
    return ""
