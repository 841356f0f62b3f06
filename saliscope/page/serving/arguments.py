"""Check the argument names of API calls, because Gradio silently ignores unknown ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from saliscope.names import IN_SHORT_LISTS, did_you_mean, nearest

ROUTES = re.compile(r"/gradio_api/(?:call|run|api)/(?P<named>v2/)?(?P<name>[a-z_]+)/?")
ENDPOINTS = ("/gradio_api/call/", "/gradio_api/run/", "/gradio_api/api/")
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
_events: set[int] = set()


def register(function: Callable[..., Any]) -> None:
    """Register the arguments of an endpoint."""
    _known[function.__name__] = list(inspect.signature(function).parameters)


def register_events(numbers: Iterable[int]) -> None:
    """Register the numbers of all events of the page."""
    _events.clear()
    _events.update(numbers)


def is_unknown_event(message: Any) -> bool:
    """Return whether a message has the number of an event that does not exist."""
    number = message.get("fn_index") if isinstance(message, dict) else None
    return number is not None and bool(_events) and (type(number) is not int or number not in _events)


def is_unknown(path: str, message: Any) -> bool:
    """Return whether a path names an endpoint that does not exist, for which Gradio answers with status 500.

    The events of the page are called by their number.
    """
    if not _known or not path.startswith(ENDPOINTS):
        return False
    route = ROUTES.fullmatch(path)
    numbered = isinstance(message, dict) and message.get("fn_index") is not None
    return not numbered and (route is None or route["name"] not in _known)


def unknown_message() -> str:
    """Return the message for an endpoint that does not exist."""
    return f"Unknown endpoint. Available: {', '.join(sorted(_known))}."


def error_message(path: str, message: Any) -> str:
    """Return the error message for the arguments of a call, or an empty string."""
    route = ROUTES.fullmatch(path)
    if not route or route["name"] not in _known or not isinstance(message, dict):
        return ""
    name, known = route["name"], _known[route["name"]]
    unknown = sorted(message.keys() - MESSAGE - set(known if route["named"] else ()))
    if unknown:
        hint = did_you_mean(nearest(unknown[0][:60], known, 1, IN_SHORT_LISTS))
        return f"{name} has no argument “{unknown[0][:60]}”. {hint}Available: {', '.join(known) or 'none'}."
    values = message.get("data")
    if not route["named"] and isinstance(values, list) and len(values) != len(known):
        order = f" Pass {', '.join(known)}, in this order. An empty string or null means the default." if known else ""
        return f"{name} takes {len(known)} arguments, got {len(values)}.{order}"
    return ""
