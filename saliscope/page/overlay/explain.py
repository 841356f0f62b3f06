"""Answers the questions of the page: what each step of an explanation changes in the Explain view and the settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from saliscope.compute import engine, headline, messages, model_cache, removal, results_cache
from saliscope.compute.answers import Answer, LoadedModel, Refining, Scene, Settings, Stages, Step, Waiting
from saliscope.compute.bundles import links
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.methods import costs
from saliscope.compute.rail.messages import no_layer
from saliscope.compute.request import Request
from saliscope.compute.trust import engine as checks
from saliscope.errors import Refused
from saliscope.page.api import parts as api_parts
from saliscope.page.api.snippets import snippets
from saliscope.page.batch import messages as batch_messages
from saliscope.page.batch import parts as batch_parts
from saliscope.page.channels import view as channels_view
from saliscope.page.components import view
from saliscope.page.events import PAGE, Ask, on, run_job
from saliscope.page.maps import parts as maps_parts
from saliscope.page.methods import guide, picker
from saliscope.page.methods import parts as methods_parts
from saliscope.page.overlay import parts as overlay_parts
from saliscope.page.overlay import stored as stored_answer
from saliscope.page.panel import parts as panel_parts
from saliscope.page.panel import settings as panel
from saliscope.page.rail import parts as rail_parts
from saliscope.page.trust import parts as trust_parts
from saliscope.page.trust import trust
from saliscope.page.wire import Updates, new_number


@on(PAGE, "open")
def open_page(ask: Ask) -> Iterator[Updates]:
    """Answer the request of an address, after the page was opened or the user went back or forward.

    The page starts with the stored answer if it matches.
    """
    query = links.parse_query(ask.data.get("address"))
    question, example, notes = links.read(query, ask.data)
    is_first = ask.data.get("first") is True
    stored = None
    if is_first and not notes and not model_cache.ready.is_set():
        stored = stored_answer.load_stored(model_cache.requested_model())
        if stored and not stored_answer.matches(stored, question, example):
            stored = None

    def show_error(message: str) -> Updates:
        nothing = {} if stored else {overlay_parts.OVERLAY: {"words": {"empty": message}}}
        return _error(message) | nothing

    def steps(run: Run) -> Iterator[Updates]:
        form = {} if is_first else ask.form
        yield panel.restore(question, query, example)
        try:
            if stored:
                yield _stored(stored, ask.data.get("landed") is True)
            yield from _updates(question, form, run, ask, notes, stored)
        except Refused as error:
            if not question.model or model_cache.has(question.model) or not model_cache.first_model():
                raise
            other, first = replace(question, model="", layer="", lenient=True), model_cache.first_model()
            title = model_cache.load(first).title
            note = messages.other_model(str(error), title)
            button = {"label": messages.use_model(title), "remedy": {"model": first}}
            for updates in _updates(other, form, run, ask, [*notes, note]):
                for item in updates.get(overlay_parts.FINDINGS, {}).get("items", ()):
                    item |= button if item["sentence"] == note else {}
                yield updates
        if message := links.missing(query, question):
            yield {overlay_parts.STATUS: messages.status("idle", message)}

    yield from run_job(ask.session, steps, show_error, number=ask.number)


@on(PAGE, "ask")
def explain(ask: Ask) -> Iterator[Updates]:
    """Answer the settings of the page; "again" computes a finished answer once more."""
    again = ask.data.get("again") is True
    try:
        question: Request | Refused = ask.question()
    except Refused as error:
        question = error

    def steps(run: Run) -> Iterator[Updates]:
        interrupted = trust.interrupt(ask.session)
        try:
            if isinstance(question, Refused):
                raise question
            if shown := panel.preview(question):
                yield shown
            yield from _updates(replace(question, use_cache=not again), ask.form, run, ask)
        except Exception:
            if interrupted:
                yield interrupted
            raise

    def show_error(message: str) -> Updates:
        former = None if isinstance(question, Refused) else _former_model(question)
        if former is None:
            return _error(message)
        line = messages.status("error", messages.former_model(message, former.title))
        return {overlay_parts.STATUS: line | {"former": former.name}}

    yield from run_job(ask.session, steps, show_error, number=ask.number)


def _former_model(question: Request) -> LoadedModel | None:
    """Return the model whose answer the page shows if that of the question could not be loaded."""
    failed = question.model and not model_cache.has(question.model)
    return model_cache.load(question.form_model) if failed and model_cache.has(question.form_model) else None


@on(maps_parts.PLANES, "select")
def show_plane(ask: Ask) -> Iterator[Updates]:
    """Show another plane of the current answer without changing the settings."""

    def steps(run: Run) -> Iterator[Updates]:
        for step in engine.explain(replace(ask.question(), plane=ask.integer("plane", -1)), run, stages=False):
            if isinstance(step, Answer):
                yield _map(step, new_number(), ask)

    yield from run_job(ask.session, steps, _error_line)


@on(panel_parts.ACTIONS, "stop")
def stop(ask: Ask) -> Iterator[Updates]:
    """Stop the explanation of this visitor; its own handler shows the best map so far."""
    ident = new_number()  # smaller than that of the last answer of the run
    runs.stop(ask.session)
    if runs.is_loading(ask.session):
        yield {overlay_parts.STATUS: messages.status("busy", messages.STOPS_AFTER_LOADING, ident=ident)}


def _updates(
    question: Request,
    form: dict[str, Any],
    run: Run,
    ask: Ask,
    notes: Iterable[str] = (),
    stored: dict[str, Any] | None = None,
) -> Iterator[Updates]:
    """Yield the updates of a request: settings, partial maps, the map, and the maps of all blocks.

    Settings that precede a map which takes less than a moment are sent with the map.
    """
    answer, shown, loaded = None, None, None
    pending: Updates = {}
    try:
        for step in engine.explain(question, run):
            ident = new_number()
            if isinstance(step, Settings):
                loaded = step.loaded
                notes = [*notes, *(() if form else links.unknown_options(step, question))]  # a form may be outdated
            elif isinstance(step, Answer):
                shown = step, ident
            answer = step if isinstance(step, Answer) else None
            pending |= _updates_of(step, question, form, ident, notes, stored, ask)
            if not (form and question.image and _precedes_a_map(step)):
                yield pending
                pending = {}
    except Exception:
        if pending:
            yield pending
        raise
    if answer:
        yield _without_stages(answer.settings)
    if loaded and (updates := panel.receptive_fields(loaded)):
        yield updates
    if shown and removal.measure(shown[0], question, run):
        # The id of the map: scripts ignore the sentence if they have received the status of a newer request.
        yield {overlay_parts.STATUS: headline.status(*shown)}


def _updates_of(
    step: Step,
    question: Request,
    form: dict[str, Any],
    ident: int,
    notes: Iterable[str],
    stored: dict[str, Any] | None,
    ask: Ask,
) -> Updates:
    """Return the updates of one step."""
    if isinstance(step, Settings):
        return _settings(step, question, form, notes)
    if isinstance(step, Waiting) and stored:
        return {overlay_parts.STATUS: messages.landed(stored, step.message, ident)}
    if isinstance(step, Waiting):
        return {overlay_parts.STATUS: messages.status("busy", step.message, ident=ident, fraction=step.fraction)}
    if isinstance(step, Scene):
        return _objects(step, question, ident, notes)
    if isinstance(step, Refining):
        return _partial_map(step, ident)
    if isinstance(step, Stages):
        return {rail_parts.RAIL: view.stages(step, ident)}
    updates = _answer(step, notes, ident, ask)
    line = updates[overlay_parts.STATUS]
    if stored and stored["headline"][0] == line["headline"][0]:
        line |= {"headline": stored["headline"], "settled": True}  # until the experiment is repeated here
    settings, subject = step.settings, results_cache.subject(step.settings, question)
    note = "" if settings.method.takes_layer else no_layer(settings.method)
    return {
        **updates,
        panel_parts.BANDS: view.bands(settings, question.bands),
        "gradients": {"key": subject, "chosen": settings.layer, "note": note},
    }


def _settings(settings: Settings, question: Request, form: dict[str, Any], notes: Iterable[str]) -> Updates:
    updates = panel.update(settings, question, form)
    updates |= _followers(settings)
    if question.image is None:
        ident = new_number()
        updates |= dict.fromkeys([maps_parts.PLANES, rail_parts.RAIL, maps_parts.BARS, methods_parts.GUIDE])
        updates[overlay_parts.FINDINGS] = view.notes([*notes, *settings.notes], ident)
        updates[overlay_parts.STATUS] = messages.status("idle", messages.NO_IMAGE, ident=ident)
        updates[overlay_parts.OVERLAY] = {"id": ident, "words": {"empty": messages.EMPTY_OVERLAY}}
        updates |= {"answered": {"key": str(ident)}, **_without_norms(settings)}
    return updates


def _objects(step: Scene, question: Request, ident: int, notes: Iterable[str]) -> Updates:
    """Show the detected objects, or the image and the reason if there are none."""
    updates: Updates = {maps_parts.BARS: view.objects(step, ident), **panel.objects(step, question)}
    if step.chosen is None:
        updates |= {
            overlay_parts.STATUS: messages.status("done", step.message, ident=ident),
            overlay_parts.OVERLAY: view.image_only(step, ident),
            overlay_parts.FINDINGS: view.reason(step, [*notes, *step.settings.notes], ident),
            maps_parts.PLANES: None,
            methods_parts.GUIDE: None,
            trust_parts.TRUST: {"key": "", "why": "", "quick": False},
            **_without_stages(step.settings),
            **_without_norms(step.settings),
            "answered": {"key": str(ident)},
        }
    return updates


def _without_stages(settings: Settings) -> Updates:
    return {rail_parts.RAIL: {"chosen": settings.layer, "stages": []}}


def _without_norms(settings: Settings) -> Updates:
    return {"gradients": {"key": "", "chosen": settings.layer, "note": ""}}


def _partial_map(step: Refining, ident: int) -> Updates:
    updates: Updates = {
        overlay_parts.STATUS: messages.refining(step, ident) | {"headline": headline.before_the_map(step)}
    }
    if step.probabilities is not None:
        updates[maps_parts.BARS] = view.classes(step, ident)
    if step.map is None:
        return updates
    return {
        **updates,
        overlay_parts.OVERLAY: view.refining(step, ident),
        methods_parts.GUIDE: {"id": ident, "parts": guide.parts(step)},
    }


def _answer(step: Answer, notes: Iterable[str], ident: int, ask: Ask) -> Updates:
    settings = step.settings
    step = replace(step, settings=replace(settings, notes=(*notes, *settings.notes)))
    return {
        **_map(step, ident, ask),
        maps_parts.BARS: view.classes(step, ident),
        overlay_parts.FINDINGS: view.findings(step, ident),
        trust_parts.TRUST: trust.identify(step, ident),
        overlay_parts.FOLD: {"text": messages.folded(step)},
        "answered": {"key": str(ident)},
        **({panel_parts.METHOD: picker.update(settings)} if step.is_mistimed else {}),
        **(_followers(settings) if settings.bands else {}),
    }


def _followers(settings: Settings) -> Updates:
    """Update the parts that follow the settings."""
    explains = batch_messages.FOR_SENTENCE if settings.loaded.encodes_text else batch_messages.FOR_CLASS
    return {
        "question": view.question(settings),
        api_parts.SNIPPET_LIST: snippets(settings),
        batch_parts.MANY_HEAD: explains,
    }


def _map(step: Answer, ident: int, ask: Ask) -> Updates:
    """Show the map, its status and its pager."""
    checked = checks.find(step.settings.key)
    return {
        overlay_parts.STATUS: headline.status(step, ident, checked.verdict if checked else None),
        overlay_parts.OVERLAY: view.answer(step, ident, ask.crops),
        maps_parts.PLANES: channels_view.planes(step),
        methods_parts.GUIDE: {"id": ident, "parts": guide.parts(step)},
    }


def _stored(stored: dict[str, Any], sent: bool) -> Updates:
    """Show the stored answer before the network is loaded; the page may already have all but the maps of blocks."""
    ident = new_number()
    values = {} if sent else stored_answer.values(stored, ident, messages.loading(0))
    return {**values, rail_parts.RAIL: {**stored["strip"], "id": ident}}


def _error(message: str) -> Updates:
    """Show an error in the status line; the old result stays, marked as outdated."""
    line = _error_line(message)
    return line if model_cache.first_model() else {**panel.list_models(), **line}


def _error_line(message: str) -> Updates:
    return {overlay_parts.STATUS: messages.status("error", message)}


def _precedes_a_map(step: Step) -> bool:
    """Return whether these settings can be sent with their map, because it will take less than a moment.

    Each message takes server and browser together about as long as such a map.
    """
    seconds = costs.seconds(step.method.name, step.loaded) if isinstance(step, Settings) else None
    return seconds is not None and seconds < costs.MOMENT
