"""The arguments of the API's endpoints, by their names: Gradio drops those that it does not know."""

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
"""What a message of Gradio's may hold besides; in the second version of the route, arguments stand among these."""
_known: dict[str, list[str]] = {}


def offer(function: Callable[..., Any]) -> None:
    """This endpoint takes these arguments, and no others."""
    _known[function.__name__] = list(inspect.signature(function).parameters)


def wrong(path: str, message: Any) -> str:
    """What is wrong with the arguments of a call of an endpoint, in a sentence; empty where nothing is."""
    route = ROUTES.fullmatch(path)
    if not route or route["name"] not in _known or not isinstance(message, dict):
        return ""
    name, known = route["name"], _known[route["name"]]
    unknown = sorted(message.keys() - MESSAGE - set(known if route["named"] else ()))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1, 0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        return f"{name} has no argument called “{unknown[0][:60]}”.{hint} It takes {', '.join(known) or 'none'}."
    given = message.get("data")
    if not route["named"] and isinstance(given, list) and len(given) != len(known):
        order = f", in this order: {', '.join(known)}; an empty string or null means the default" if known else ""
        return f"{name} takes {len(known)} arguments, not {len(given)}{order}."
    return ""
