"""The elements of the page: plain HTML, and parts that scripts draw."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

from saliscope.compute.request import EXAMPLE
from saliscope.images import examples

COMBOBOX: dict[str, Any] = {
    "no_match": "No match for “{text}”. Try a shorter word.",
    "more": "{count} more: scroll, or type to find them",
    "found": ["1 match", "{count} matches"],
    "waiting": "The list appears here after the model is loaded.",
    "jump": "Jump to a group",
    "unused": "not used",
    "none": "none",
}
"""Texts of lists/combobox.js."""

Item = str | tuple[str, str] | tuple[str, str, list[str]] | tuple[str, str, list[str], dict[str, Any]]
"""A name, or a label, a name, the texts of its columns, and the other fields of an item in lists/search.js."""


class Element:
    """An HTML element. A child that is a text is HTML."""

    def __init__(self, tag: str, *children: Element | str, **attributes: str | bool) -> None:
        self.tag, self.children, self.attributes = tag, children, attributes

    def html(self) -> str:
        """Return the element as HTML."""
        attributes = "".join(_attribute(name, value) for name, value in self.attributes.items() if value is not False)
        inner = "".join(child if isinstance(child, str) else child.html() for child in self.children)
        return f"<{self.tag}{attributes}>{inner}</{self.tag}>"

    def parts(self) -> Iterator[Part]:
        """Yield the parts inside this element, in order."""
        for child in self.children:
            if isinstance(child, Element):
                yield from child.parts()


def _attribute(name: str, value: str | bool) -> str:
    """Return an attribute as HTML; `class_` and `data_tab` are names of Python."""
    name = name.replace("_", "-").rstrip("-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


class Part(Element):
    """A part of the page that the script `module`.js draws. A message to the page names it by its id.

    `props` has what never changes, such as texts. `value` is what the page shows before the first message.
    """

    def __init__(self, module: str, id: str, *, value: Any = None, **props: Any) -> None:
        name = module.rpartition("/")[2]
        super().__init__("div", f"<div class='hl-{name}'></div>", id=id)
        self.module, self.id, self.value, self.props = module, id, value, props

    def parts(self) -> Iterator[Part]:
        """Yield this part."""
        yield self


class Props(dict[str, Any]):
    """New props of a part, in place of a new value."""


def box(id: str, *children: Element | str, **attributes: str | bool) -> Element:
    """Return a `div` with an id."""
    return Element("div", *children, id=id, **attributes)


def choice(id: str, label: str, setting: str, heads: Sequence[str], module: str = "lists/choice", **props: Any) -> Part:
    """Return a selection with search from a list of names. `heads` are the titles of its columns."""
    return Part(module, id, value="", setting=setting, names=[], title=label, words=COMBOBOX, heads=heads, **props)


def names(items: Sequence[Item]) -> list[Any]:
    """Return the items of a selection for its script."""
    return [(item, item) if isinstance(item, str) else item for item in items]


def example_items() -> list[dict[str, str]]:
    """Return the example images as the scripts list them.

    Each has its ID, description, note, file, and its position `at` (in percent) in the image `src` of all thumbnails.
    """
    found = list(examples.all_examples().values())
    return [
        {
            "id": each.id,
            "alt": each.alt,
            "note": each.note,
            "src": f"hl/{examples.thumbnails_name()}",
            "at": f"{100 * k / max(1, len(found) - 1):.4g}%",
            "file": example_image(each)["src"],
        }
        for k, each in enumerate(found)
    ]


def example_image(example: examples.Example) -> dict[str, str]:
    """Return an example as the image of the page: what a request names, and what the browser shows."""
    return {"image": f"{EXAMPLE}{example.id}", "src": f"hl-examples/{example.path.name}"}
