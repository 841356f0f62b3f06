"""What a tab is: the page that it stands on, its two methods, and the way of every click (`job`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gradio as gr

from ui import limits, words
from ui.engine import engine, packing, runs
from ui.engine.messages import Settings
from ui.engine.runs import Run
from ui.tabs.components import canvas
from ui.tabs.picture_panel import Panel

Updates = dict[Any, Any]
"""New values by component."""

AT_ONCE: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
"""For events whose handler only changes the page."""


@dataclass
class Page:
    """What all tabs share: the left column, the status line, and the components that follow the settings."""

    demo: gr.Blocks
    panel: Panel
    status: gr.HTML
    fold: gr.HTML
    """The row that opens the left column on a phone."""
    seen: list[gr.HTML] = field(default_factory=list)
    resolved: dict[gr.HTML, Callable[[Settings], Any]] = field(default_factory=dict)
    """Components, and their values for settings whose names are resolved."""
    changing: list[gr.HTML] = field(default_factory=list)
    """Components of other tabs whose `select` event changes the settings."""
    tables: list[gr.HTML] = field(default_factory=list)
    """The places that show the ranking."""

    def seen_in_tab(self, elem_id: str) -> gr.HTML:
        """A component whose `focus` event fires when its tab is in front and the last answer is new to it."""
        self.seen.append(canvas("page/seen", elem_id))
        return self.seen[-1]


class Tab(ABC):
    """A tab of the page: `build` makes its components, `wire`, called after all are built, connects their events."""

    title: ClassVar[str]
    id: ClassVar[str]

    def __init__(self, page: Page) -> None:
        self.page = page
        self.build()

    @abstractmethod
    def build(self) -> None:
        """Lay the tab out; its components become attributes."""

    def wire(self) -> None:  # noqa: B027 a tab may only show something
        """Connect the components' events to handlers; nothing for a tab that only shows something."""


def queued(kind: str, **more: Any) -> dict[str, Any]:
    """For events whose handler computes: their place in the queue, by a kind of `limits.CONCURRENCY`."""
    limit = limits.CONCURRENCY[kind]
    return {"concurrency_id": kind, "concurrency_limit": limit, "api_visibility": "private", **more}


def job(
    name: str | None,
    steps: Callable[[Run], Iterator[Any]],
    refused: Callable[[str], Any],
    *,
    question: str = "",
    again: bool = False,
    seconds: float = limits.SECONDS,
    unknown: str = words.UNKNOWN,
) -> Iterator[Any]:
    """The way of every click: yield `steps(run)` of a new job; an error becomes `refused(sentence)`.

    `name` is the visitor's session, or "session/part" for what runs beside the overlay; a former job of that name ends,
    and shows nothing more. Where the last one answers the same `question`, none begins but `again`.
    """
    with runs.begin(name, seconds, question, again) as run:
        if run is None:
            yield _unchanged(refused(""))
            return
        try:
            for step in steps(run):
                if not run.superseded:  # else it goes on to its next report, where it ends
                    yield step
        except Exception as error:
            if not run.superseded:
                yield refused(engine.sentence_of(error, unknown))
        if run.superseded:
            yield _unchanged(refused(""))  # Gradio sends the last step again at the end: it must not replace newer ones


def _unchanged(update: Any) -> Any:
    """What changes nothing where a handler gives such updates: by component, or the value of its only one."""
    components = isinstance(update, dict) and all(isinstance(key, gr.blocks.Block) for key in update)
    return dict.fromkeys(update, gr.skip()) if components else gr.skip()


def event_data(event: gr.EventData) -> dict[str, Any]:
    """What a component's script sent with its event."""
    data = getattr(event, "_data", None)
    return data if isinstance(data, dict) else {}


def integer(value: Any, default: int) -> int:
    """A number that a script sent."""
    return value if isinstance(value, int) else default


def error_line(sentence: str) -> dict[str, Any]:
    """A refusal as the value of a status line."""
    return words.status("error", sentence, ident=packing.number())
