"""One request of the page, and its answer: the table of handlers, and `run_job`, which runs one.

A script asks with one event, which names a part of the page and what happened to it, and has the settings of the
page. The answer is a sequence of messages: new values by part, or by name of the state in store.js.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from saliscope import limits
from saliscope.compute import engine, messages
from saliscope.compute.answers import Waiting
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.places import places
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import Request, from_form, parse_cell
from saliscope.errors import Refused
from saliscope.page.elements import Part
from saliscope.page.wire import Updates, pack

Handler = Callable[["Ask"], Iterator[Updates] | None]

PAGE = "hl-page"
"""The id of the page, whose events are questions about the settings."""
HANDLERS: dict[tuple[str, str], Handler] = {}
"""What answers an event of a part, by the id of the part and the name of the event."""


@dataclass(frozen=True)
class Ask:
    """A request of the page."""

    part: str
    event: str
    data: dict[str, Any] = field(default_factory=dict)
    """What the script sent with the event."""
    form: dict[str, Any] = field(default_factory=dict)
    """The settings of the page, see `from_form`."""
    session: str = ""
    number: int | None = None
    """Grows with each request of a page, because requests may start in another order."""
    crops: tuple[str, ...] = ()
    """The crops that the browser holds, see `view.crop`."""

    def question(self) -> Request:
        """Return the request of the settings.

        Errors   Refused
        """
        return from_form(self.form)

    def job(self, name: str) -> str:
        """Return the name of a job of this visitor that runs at the same time as the explanation."""
        return f"{self.session}/{name}"

    def text(self, name: str, longest: int = 200) -> str:
        """Return a text that the script sent, or an empty one."""
        value = self.data.get(name)
        return value[:longest] if isinstance(value, str) else ""

    def integer(self, name: str, default: int) -> int:
        """Return an integer that the script sent."""
        value = self.data.get(name)
        return value if type(value) is int else default

    def cell(self) -> tuple[int, int] | None:
        """Return the cell (row, column) that the script sent, or None."""
        return parse_cell(self.data.get("cell"))


def parse(data: Any, session: str | None) -> Ask:
    """Return the request that a script sent; what has the wrong type is left out."""
    fields = data if isinstance(data, dict) else {}
    number, crops = fields.get("number"), fields.get("crops")
    sent, form = (value if isinstance(value, dict) else {} for value in (fields.get("data"), fields.get("form")))
    return Ask(
        str(fields.get("part")),
        str(fields.get("event")),
        sent,
        form,
        session or "",
        number if type(number) is int and number else None,
        tuple(crop for crop in crops if isinstance(crop, str)) if isinstance(crops, list) else (),
    )


def on(part: Part | str, *events: str) -> Callable[[Handler], Handler]:
    """Return a decorator that lets a function answer these events of a part."""

    def register(handler: Handler) -> Handler:
        name = part if isinstance(part, str) else part.id
        HANDLERS.update(dict.fromkeys(((name, event) for event in events), handler))
        return handler

    return register


def stop_on(part: Part, job: str) -> None:
    """Let the event "stop" of a part stop this job of the visitor; its own handler shows what is complete."""
    HANDLERS[part.id, "stop"] = lambda ask: runs.stop(ask.job(job))


def respond(event: Any, session: str | None) -> Iterator[str]:
    """Answer an event of the page in a session with messages as JSON. An event that no part has is not answered."""
    ask = parse(getattr(event, "_data", None), session)
    handler = HANDLERS.get((ask.part, ask.event))
    for updates in (handler(ask) if handler else None) or ():
        yield pack(updates, ask.number if ask.part == PAGE else None)


def run_job(
    name: str | None,
    steps: Callable[[Run], Iterator[Updates]],
    show_error: Callable[[str], Updates],
    *,
    question: str = "",
    number: int | None = None,
    seconds: float = limits.SECONDS,
    unknown: str = messages.UNKNOWN,
    stopped: str = "",
    place: str = "",
) -> Iterator[Updates]:
    """Run a handler as a new job: yield `steps(run)`; an error becomes `show_error(message)`.

    `name` is the session of the visitor, or "session/part" for jobs that run at the same time as the explanation. A
    previous job with that name is stopped and its results are not shown. A job starts only if its `number` is larger
    than that of the latest one, or if one of them has none. `question` is what the job is about. `stopped` replaces the
    message of an error after the visitor has stopped the job. A job without an image names the kind of its `place` in
    `limits.PLACES`.
    """
    with contextlib.ExitStack() as stack:
        try:
            run = stack.enter_context(runs.start(name, seconds, question, number))
        except Refused as error:
            yield show_error(str(error))
            return
        if run is None:
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
            message = engine.message_of(error, unknown)
            if not run.superseded:
                yield show_error(stopped if stopped and run.cancelled else message)


Show = dict[type[Any], Callable[[Any], Updates]]
"""What a step shows, by its type."""


def shown(steps: Iterator[Any], show: Show) -> Iterator[Updates]:
    """Yield what the steps of a job show; a step of another type shows nothing."""
    for step in steps:
        for kind, pack_step in show.items():
            if isinstance(step, kind):
                yield pack_step(step)
                break


def busy(part: Part) -> Show:
    """Show in the status line of a part that a job waits."""
    return {Waiting: lambda step: {part: messages.status("busy", step.message, fraction=step.fraction)}}


def failed(part: Part) -> Callable[[str], Updates]:
    """Return a function that shows an error in the status line of a part."""
    return lambda message: {part: messages.status("error", message)}


def answer_newest(
    ask: Ask,
    part: Part,
    name: str,
    work: Callable[[Run], Iterator[Any]],
    show: Callable[[Any], dict[str, Any]],
) -> Iterator[Updates]:
    """Run `work(run)` as the job `name` of a part, unless its request has a smaller `number` than the latest one.

    The value of the part has the number, a `state` ("waiting", "done" or "refused"), a `text` and a `fraction`, and the
    fields `show(step)`. page/shared/job.js reads it.
    """
    number = ask.integer("number", 0)

    def pack(state: str = "done", text: str = "", fraction: float | None = None, **fields: Any) -> Updates:
        return {part: {"number": number, "state": state, "text": text, "fraction": fraction, **fields}}

    def wait(step: Waiting) -> Updates:
        return pack("waiting", step.message, step.fraction)

    kinds: Show = {Waiting: wait, object: lambda step: pack(**show(step))}
    steps, show_error = (lambda run: shown(work(run), kinds)), partial(pack, "refused")
    yield from run_job(ask.job(name), steps, show_error, number=number)
