"""Settings as query parameters, and back. A link names an example picture or one of a run that the page was started
with, never a visitor's own photograph.

The address of the page always holds its state (static/page/address.js). A visitor's own picture stands in it by a name
that means something in their browser alone, which hands the picture to the server again when the page is reloaded.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

from ui import examples
from ui import words as page_words
from ui.engine import scene
from ui.engine.messages import Refused, Settings
from ui.engine.request import LONGEST, NAMES, Request
from ui.many import past
from ui.serving import bands, uploads
from ui.share import words

PARAMETERS = {name: {"target": "class"}.get(name, name) for name in NAMES}
"""The query parameter of each setting."""
BANDS = "bands"
OPTIONS = 2000  # characters of the options, a JSON object
QUERY = 8000  # characters of an address
OWN = "own"
"""The name of a visitor's own picture in their browser."""
NONE = "none"
"""The example of a page without a picture."""


def read(query: Mapping[str, str], kept: Any = None) -> tuple[Request, examples.Example | None, list[str]]:
    """The request of a link, its example picture (None for others), and a note where there is no such example.

    `kept` is what the browser has of the visitor's own picture, {"file": the upload}; without it the request has no
    picture. Unreadable or overlong values are left out; whether a name exists is checked where it is used.
    """
    names = {field: _short(query, parameter) for field, parameter in PARAMETERS.items()}
    settings = {**names, "options": _options(query.get("options", "")), "bands": _short(query, BANDS)}
    if query.get(OWN):
        file, picture = kept.get("file") if isinstance(kept, dict) else None, None
        with contextlib.suppress(Refused):  # no upload: forged, or deleted meanwhile
            picture = str(bands.original(uploads.inside_uploads(file))) if file else None
        return Request(picture, **settings), None, []
    if query.get("example") == NONE:
        return Request(None, **settings), None, []
    known, name = examples.all_examples(), _short(query, "example")
    if past.is_digest(name):
        found = past.find(name)
        return Request(str(found) if found else None, **settings), None, []
    first = next(iter(known.values()))
    example = known.get(name, first)
    notes = [page_words.not_found(page_words.EXAMPLE, name, [], first.id)] if name and name not in known else []
    return Request(str(example.path), **settings), example, notes


def unknown_options(settings: Settings, asked: Request) -> list[str]:
    """A sentence for options that neither the method nor the network has."""
    known = [*settings.method.options, *scene.options(settings.loaded)]
    unknown = [name for name in asked.options if name not in known]
    near = [match for name in unknown[:1] for match in difflib.get_close_matches(name, known, 1, 0.5)]
    return [words.no_option(settings.method.title, unknown, near, known)] if unknown else []


def missing(query: Mapping[str, str], asked: Request) -> str:
    """A sentence where the address means a picture that is not here: a visitor's own, or one of a run; else empty."""
    if asked.picture is not None:
        return ""
    if query.get(OWN):
        return words.GONE
    return words.NOT_HERE if past.is_digest(_short(query, "example")) else ""


def parsed(address: Any) -> dict[str, str]:
    """The parameters of an address that a script sent: what follows its question mark."""
    text = address if isinstance(address, str) and len(address) <= QUERY else ""
    return dict(urllib.parse.parse_qsl(text, max_num_fields=100, errors="replace"))


def state(settings: Settings) -> dict[str, str]:
    """The parameters that ask for resolved settings; bands only once a picture of bands was opened."""
    found = {PARAMETERS[name]: value for name, value in settings.names.items()}
    known = settings.method.options
    usual = {name: "auto" if "auto" in option.choices else option.default for name, option in known.items()}
    options = {name: value for name, value in settings.options.items() if name not in usual or usual[name] != value}
    found["options"] = json.dumps(options) if options else ""
    if settings.bands:
        found[BANDS] = ",".join(map(str, settings.bands.three))
    return found


def _short(query: Mapping[str, str], parameter: str) -> str:
    value = query.get(parameter, "")
    return value if len(value) <= LONGEST else ""


def _options(text: str) -> dict[str, Any]:
    if not 0 < len(text) <= OPTIONS:
        return {}
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return options if isinstance(options, dict) else {}


def script(name: str) -> str:
    """A handler of Gradio's that calls a function of static/page/address.js."""
    return f"async (...values) => (await import(new URL('hl/page/address.js', document.baseURI))).{name}(...values)"
