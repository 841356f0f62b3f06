"""Settings as query parameters, and back. A link names an example picture, never a visitor's own photograph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

NAMES = ("example", "model", "layer", "class", "method")
LONGEST = 200
OPTIONS = 2000


def read(query: Mapping[str, str]) -> dict[str, Any]:
    """The settings that a link asks for: names as given, cut to a sane length, and options as a dictionary.

    What is not understood is left out; whether a name exists is checked where it is used.
    """
    found: dict[str, Any] = {}
    for name in NAMES:
        value = query.get(name)
        if isinstance(value, str) and 0 < len(value) <= LONGEST:
            found[name] = value
    text = query.get("options", "")
    if 0 < len(text) <= OPTIONS:
        try:
            options = json.loads(text)
        except (ValueError, RecursionError):
            options = None
        if isinstance(options, dict):
            found["options"] = options
    return found


COPY = """(example, model, layer, target, method, options) => {
  const url = new URL(document.baseURI);
  url.search = "";
  url.hash = "";
  const read = (text) => (typeof text === "string" && text ? JSON.parse(text) : {});
  const { chosen } = read(example);
  const parts = { example: chosen, model, layer, class: target, method };
  for (const [name, value] of Object.entries(parts)) if (value) url.searchParams.set(name, value);
  const values = read(options).values || {};
  if (Object.keys(values).length) url.searchParams.set("options", JSON.stringify(values));
  history.replaceState(null, "", url);
  const more = chosen ? "" : " Your own picture is not part of it.";
  const say = (text) => JSON.stringify({ link: url.href, text: text + more });
  if (!navigator.clipboard) return Promise.resolve(say("Copy this link:"));
  return navigator.clipboard.writeText(url.href).then(() => say("Link copied."), () => say("Copy this link:"));
}"""
"""The browser's side: builds the link from the values on the page, puts it into the address bar and the clipboard."""
