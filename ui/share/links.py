"""Settings as query parameters, and back. A link names an example picture, never a visitor's own photograph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ui import examples, words
from ui.engine.request import LONGEST, NAMES, Request

PARAMETERS = {name: {"target": "class"}.get(name, name) for name in NAMES}
"""The query parameter of each setting."""
BANDS = "bands"
OPTIONS = 2000  # characters of the options, a JSON object


def read(query: Mapping[str, str]) -> tuple[Request, examples.Example, list[str]]:
    """The request of a link, its example picture, and a note where there is no such example.

    Unreadable or overlong values are left out; whether a name exists is checked where it is used.
    """
    known, name = examples.all_examples(), _short(query, "example")
    first = next(iter(known.values()))
    example = known.get(name, first)
    notes = [words.not_found(words.EXAMPLE, name, [], first.id)] if name and name not in known else []
    names = {field: _short(query, parameter) for field, parameter in PARAMETERS.items()}
    options, bands = _options(query.get("options", "")), _short(query, BANDS)
    return Request(str(example.path), **names, options=options, bands=bands), example, notes


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


COPY = """(example, ...values) => {
  const url = new URL(document.baseURI);
  url.search = "";
  url.hash = "";
  const read = (text) => (typeof text === "string" && text ? JSON.parse(text) : {});
  const { chosen } = read(example), options = read(values.pop()).values || {};
  const [bands] = (read(values.pop()).text || "").split(" of ");
  const names = PARAMETERS.map((name, k) => [name, values[k]]);
  const all = [["example", chosen], ...names, ["bands", bands]];
  for (const [name, value] of all) if (value) url.searchParams.set(name, value);
  if (Object.keys(options).length) url.searchParams.set("options", JSON.stringify(options));
  history.replaceState(null, "", url);
  const more = chosen ? "" : " Your own picture is not part of it.";
  const say = (text) => JSON.stringify({ link: url.href, text: text + more });
  if (!navigator.clipboard) return Promise.resolve(say("Copy this link:"));
  return navigator.clipboard.writeText(url.href).then(() => say("Link copied."), () => say("Copy this link:"));
}""".replace("PARAMETERS", json.dumps(list(PARAMETERS.values())))
"""The browser's side: takes the example, `NAMES`, the bands and the options; writes address bar and clipboard."""
