"""Convert settings to query parameters and back.

A link refers to an example image or to an image of the run that the app was started with, never to an upload. The
address of the page always contains its state (page/shared/address.js). In an address, an uploaded image has a name that
is only valid in the browser of its user, which sends the image to the server again when the page is reloaded.
"""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saliscope.compute import messages as page_messages
from saliscope.compute.bundles import messages
from saliscope.compute.request import LONGEST, NAMES, Request, uploaded
from saliscope.errors import Refused
from saliscope.images import examples, run_images
from saliscope.names import IN_SHORT_LISTS, nearest

if TYPE_CHECKING:
    from saliscope.compute.answers import Settings

VERSION = 1
"""The version of addresses, in the parameter `v`; an address without it has version 1."""
PARAMETERS = {name: {"target": "class"}.get(name, name) for name in NAMES}
"""The query parameter of each setting."""
BANDS = "bands"
OPTIONS = 2000  # characters of the options, a JSON object
QUERY = 16_000  # characters of an address, of which an edit may have 4,000
OWN = "own"
"""The parameter of an uploaded image, which only the user's browser can resolve."""
SHARED = "shared"
"""Its value in a link that was copied."""
NONE = "none"
"""The example name of a page without an image."""


def read(query: Mapping[str, str], stored: Any = None) -> tuple[Request, examples.Example | None, list[str]]:
    """Return the request of a link, its example (None for other images), and notes on damaged or unknown values.

    `stored` is the uploaded image as the browser stores it, {"file": the upload}; without it the request has no image.
    Invalid or overlong values are ignored, with a note, and so is all of a link of a later version. Names are checked
    where they are used.
    """
    if _is_later(query.get("v", "")):
        example = next(iter(examples.all_examples().values()))
        return Request(str(example.path)), example, [messages.LATER_LINK]
    names = {field: _short(query, parameter) for field, parameter in PARAMETERS.items()}
    damaged = _damaged(query)
    notes = [messages.damaged(damaged)] if damaged else []
    settings: dict[str, Any] = {
        **names,
        "options": _parse_options(query.get("options", "")) or {},
        "bands": _short(query, BANDS),
    }
    if query.get(OWN):
        file, image = stored.get("file") if isinstance(stored, dict) else None, None
        with contextlib.suppress(Refused):  # not an upload, or already deleted
            image = uploaded(file) if file else None
        return Request(image, **settings), None, notes
    if query.get("example") == NONE:
        return Request(None, **settings), None, notes
    known, name = examples.all_examples(), _short(query, "example")
    if run_images.is_digest(name):
        file = run_images.find(name)
        return Request(str(file) if file else None, **settings), None, notes
    first = next(iter(known.values()))
    example = known.get(name, first)
    if name and name not in known:
        notes.append(page_messages.not_found(page_messages.EXAMPLE, name, [], first.id))
    return Request(str(example.path), **settings), example, notes


def unknown_options(settings: Settings, request: Request) -> list[str]:
    """Return a message for options that neither the method nor the network has."""
    known = settings.option_names
    unknown = [name for name in request.options if name not in known]
    near = [match for name in unknown[:1] for match in nearest(name, known, 1, IN_SHORT_LISTS)]
    return [messages.no_option(settings.method.title, unknown, near, known)] if unknown else []


def missing(query: Mapping[str, str], request: Request) -> str:
    """Return the message for an address whose uploaded or run image is not available, or an empty string."""
    if request.image is not None:
        return ""
    if query.get(OWN):
        return messages.SHARED if query[OWN] == SHARED else messages.GONE
    return messages.NOT_HERE if run_images.is_digest(_short(query, "example")) else ""


def parse_query(address: Any) -> dict[str, str]:
    """Parse the query string of an address that a script sent."""
    text = address if isinstance(address, str) and len(address) <= QUERY else ""
    return dict(urllib.parse.parse_qsl(text, max_num_fields=100, errors="replace"))


def state(settings: Settings) -> dict[str, str]:
    """Return the query parameters of resolved settings; bands are only known after a multispectral image is opened."""
    parameters = {PARAMETERS[name]: value for name, value in settings.names.items()}
    known = settings.method.options
    defaults = {name: "auto" if "auto" in option.choices else option.default for name, option in known.items()}
    options = {
        name: value for name, value in settings.options.items() if name not in defaults or defaults[name] != value
    }
    parameters["options"] = json.dumps(options) if options else ""
    if settings.bands:
        parameters[BANDS] = ",".join(map(str, settings.bands.three))
    return parameters


def _is_later(version: str) -> bool:
    return version.isdecimal() and len(version) <= LONGEST and int(version) > VERSION


def _short(query: Mapping[str, str], parameter: str) -> str:
    value = query.get(parameter, "")
    return value if len(value) <= LONGEST else ""


def _damaged(query: Mapping[str, str]) -> list[str]:
    """Return the parameters whose values are ignored."""
    long = [name for name in (*PARAMETERS.values(), BANDS, "example") if len(query.get(name, "")) > LONGEST]
    return [*long, *(["options"] if query.get("options") and _parse_options(query["options"]) is None else [])]


def _parse_options(text: str) -> dict[str, Any] | None:
    """Return the options, or None if the text is too long or not a JSON object."""
    if not 0 < len(text) <= OPTIONS:
        return None
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return options if isinstance(options, dict) else None
