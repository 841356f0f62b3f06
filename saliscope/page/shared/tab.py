"""The base class of tabs, the page shared by all tabs, and `job`, which runs the handler of an event."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gradio as gr

from saliscope import limits
from saliscope.compute import engine, messages
from saliscope.compute.answers import Settings
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.places import places
from saliscope.compute.jobs.runs import Run
from saliscope.errors import Refused
from saliscope.page.components import view
from saliscope.page.components.components import canvas, receiver
from saliscope.page.panel.panel import Panel

Updates = dict[Any, Any]
"""New values by component."""

UNQUEUED: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
"""Keyword arguments of events whose handler only changes the page."""


@dataclass
class Page:
    """The parts shared by all tabs: the left column, the status line, and components that follow the settings."""

    demo: gr.Blocks
    panel: Panel
    status: gr.HTML
    fold: gr.HTML
    """The row that expands the left column on a phone."""
    question: gr.HTML = field(default_factory=lambda: receiver("hl-question", "question"))
    """Passes the resolved request to the scripts, see `view.question`."""
    answered: gr.HTML = field(default_factory=lambda: receiver("hl-answered", "answered"))
    """Tells the scripts that there is a new answer."""
    followers: dict[gr.HTML, Callable[[Settings], Any]] = field(default_factory=dict)
    """Components, and functions that return their values for resolved settings."""
    changers: list[gr.HTML] = field(default_factory=list)
    """Components of other tabs whose `select` event changes the settings."""
    tables: list[gr.HTML] = field(default_factory=list)
    """The tables that show the ranking."""

    def watch_visibility(self, elem_id: str) -> gr.HTML:
        """Create a component whose `focus` event fires if its tab is visible and does not show the last answer yet."""
        return canvas("page/visible", elem_id)


class Tab(ABC):
    """A tab of the page: `build` creates its components, and `wire`, called after all tabs, connects their events."""

    title: ClassVar[str]
    id: ClassVar[str]
    in_menu: ClassVar[bool] = False
    """Whether the tab is in the menu "More"."""
    within: ClassVar[str] = ""
    """The id of the tab in the navigation to which this tab belongs as a second part."""
    part: ClassVar[str] = ""
    """The title among the parts of an entry of the navigation; by default `title`."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.build()

    @abstractmethod
    def build(self) -> None:
        """Create the layout of the tab; its components become attributes."""

    def wire(self) -> None:  # noqa: B027 not abstract, because a tab may have no events
        """Connect the events of the components; by default there are none."""

    def job_name(self, request: gr.Request) -> str:
        """Return the name of the job of this tab for one user; it runs next to those of other tabs."""
        return f"{request.session_hash}/{self.id}"

    def stop_job(self, request: gr.Request) -> None:
        """Stop the job of this tab for one user; its own handler shows what is complete."""
        runs.stop(self.job_name(request))


def queue_options(kind: str, **more: Any) -> dict[str, Any]:
    """Return the keyword arguments of events that compute.

    They start at once and wait for a place and for their turn, because Gradio's own queue is first come, first served.
    """
    return {"concurrency_id": kind, "concurrency_limit": None, "api_visibility": "private", **more}


def run_job(
    name: str | None,
    steps: Callable[[Run], Iterator[Any]],
    show_error: Callable[[str], Any],
    *,
    question: str = "",
    again: bool = False,
    number: int | None = None,
    seconds: float = limits.SECONDS,
    unknown: str = messages.UNKNOWN,
    place: str = "",
) -> Iterator[Any]:
    """Run the handler of an event: yield `steps(run)` of a new job; an error becomes `show_error(message)`.

    `name` is the session of the user, or "session/part" for jobs that run in parallel to the overlay. A previous job
    with that name is stopped and its results are not shown. If the latest job answers the same `question`, a new job
    only starts with `again`. A job with a smaller `number` than the latest one does not start. A job without an image
    names the kind of its `place` in `limits.PLACES`.
    """
    with contextlib.ExitStack() as stack:
        try:
            run = stack.enter_context(runs.start(name, seconds, question, again, number))
        except Refused as error:
            yield show_error(str(error))
            return
        if run is None:
            yield _unchanged(show_error(""))
            return
        try:
            for _ in places.wait(run, place) if place else ():
                pass
            for step in steps(run):
                if not runs.is_heard(run):  # Gradio would keep the answers of all sessions that read none
                    break
                if not run.superseded:  # a superseded job continues until its next report
                    yield step
        except Exception as error:
            run.failure = error
            if not run.superseded:
                yield show_error(engine.message_of(error, unknown))
        if run.superseded:
            yield _unchanged(show_error(""))  # Gradio sends the last step again, which must not replace newer results


def _unchanged(update: Any) -> Any:
    """Return an update without changes, in the same format: by component, or the value of a single component."""
    components = isinstance(update, dict) and all(isinstance(key, gr.blocks.Block) for key in update)
    return dict.fromkeys(update, gr.skip()) if components else gr.skip()


def event_data(event: gr.EventData) -> dict[str, Any]:
    """Return the data that a script sent with an event."""
    data = getattr(event, "_data", None)
    return data if isinstance(data, dict) else {}


def integer(value: Any, default: int) -> int:
    """Parse an integer that a script sent."""
    return value if isinstance(value, int) else default


def error_line(message: str) -> dict[str, Any]:
    """Return an error message as the value of a status line."""
    return messages.status("error", message, ident=view.number())
