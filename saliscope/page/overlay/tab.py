"""The Overlay tab, which shows a map over the image and handles all changes of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from saliscope.compute import engine, messages, model_cache
from saliscope.compute.answers import Answer
from saliscope.compute.bundles import links
from saliscope.compute.bundles.messages import SAVE
from saliscope.compute.jobs.runs import Run
from saliscope.compute.objects import messages as object_messages
from saliscope.compute.request import Request, from_form
from saliscope.errors import Refused
from saliscope.page.components import view as page_view
from saliscope.page.components.components import COMBOBOX, canvas
from saliscope.page.components.list_columns import HEADS
from saliscope.page.maps import messages as map_messages
from saliscope.page.maps.tab import TopClassMaps
from saliscope.page.methods import guide
from saliscope.page.overlay import landing
from saliscope.page.overlay.steps import Steps
from saliscope.page.panel import panel as settings_panel
from saliscope.page.rail.tab import Rail
from saliscope.page.share.tab import Saving
from saliscope.page.shared.messages import MAP
from saliscope.page.shared.tab import UNQUEUED, Updates, error_line, event_data, integer, queue_options, run_job
from saliscope.page.trust.tab import Trust


class Overlay(Steps):
    """The map, its planes, predictions, findings, and the network diagram."""

    title, id = messages.OVERLAY, "overlay"

    def build(self) -> None:
        """Create the layout of the tab."""
        self.panel, self.status = self.page.panel, self.page.status
        with gr.Row(elem_id="hl-view"):
            with gr.Column(scale=3, min_width=320, elem_id="hl-stage"):
                self.view = canvas(
                    "overlay/overlay",
                    "hl-overlay",
                    empty=messages.SOON,
                    things=object_messages.HIDE,
                    terms=MAP,
                    save=SAVE,
                    address=True,
                )
                self.planes = canvas("maps/planes", "hl-planes")
                self.saving = Saving(self.page)
            with gr.Column(min_width=320, elem_id="hl-network"):
                self.rail = Rail(self.page)
            with gr.Column(scale=1, min_width=220, elem_id="hl-side"):
                terms = map_messages.BARS | {"list": COMBOBOX, "heads": HEADS["target"]}
                self.bars = canvas("maps/classes", "hl-bars", terms=terms, events=["answered"])
                self.findings = canvas("panel/findings", "hl-findings")
                self.trust = Trust(self.page, "hl-overlay")
                self.guide = guide.guide("hl-guide")
        self.top_maps = TopClassMaps(self.page)
        self.strip = self.rail.drawing

    def wire(self) -> None:
        """Connect the events; the latest request of a user replaces the previous ones."""
        page, panel = self.page, self.panel
        self.saving.wire()
        shown = [self.status, self.view, self.planes, self.guide]
        outputs = [
            *panel.inputs[1:],
            panel.notice,
            panel.preprocessing,
            panel.crop,
            panel.stop,
            page.fold,
            *shown,
            self.bars,
            self.findings,
        ]
        outputs += [*self.rail.outputs, page.question, page.answered, *page.followers, self.trust.strip]
        shared = queue_options("model", trigger_mode="multiple", show_progress="hidden")
        # The image is set by a plain handler, because Gradio mixes up a file that only one step of a generator sends.
        stored: dict[str, Any] = {"inputs": panel.address, "js": links.script("restoreImage")}  # the uploaded image
        opening = [panel.image, panel.examples, panel.bands, panel.pin]
        loaded = page.demo.load(self.open_page, outputs=opening, **stored, **UNQUEUED)
        loaded.then(self.first, outputs=outputs, **stored, **shared)
        numbered: dict[str, Any] = {
            "inputs": [*panel.inputs, panel.pin, panel.address],
            "js": links.script("numberRequest"),
        }
        shown_now = [panel.image, panel.bands, panel.options, panel.pin]
        plain: dict[str, Any] = {"trigger_mode": "multiple", **UNQUEUED}
        files = [panel.image.input, panel.bands.select, panel.address.select]
        change = gr.on(files, self.change, shown_now, panel.outputs, **plain)
        change.then(self.update, outputs=outputs, **numbered, **shared)
        # One request per click: the click of an example raises two events, of which one only shows its image.
        panel.examples.select(self.change, shown_now, panel.outputs, **plain)
        clicked = [
            panel.options,
            panel.notice,
            panel.preprocessing,
            panel.crop,
            self.status,
            self.view,
            self.bars,
            self.findings,
        ]
        clicked += [self.strip, *page.changers]
        events = [*(each.input for each in panel.choices.values()), *(each.select for each in clicked)]
        gr.on(events, self.apply, outputs=outputs, **numbered, **shared)
        panel.examples.explain(self.apply, outputs=outputs, **numbered, **shared)
        panel.explain.click(self.recompute, outputs=outputs, **numbered, **shared)
        self.planes.select(self.plane, panel.inputs, shown, **shared)
        self.rail.wire()
        self.trust.wire()
        self.top_maps.wire(self.bars)

    def open_page(self, request: gr.Request, stored: Any) -> Updates:
        """Show the image of the link or the first example when a page is opened, and set the bands."""
        question, example, _ = links.read(request.query_params, stored)
        panel, picker = self.panel, {"text": question.bands}
        preview = {} if example else settings_panel.preview(question.image, None, picker, self.panel)
        return {
            panel.image: question.image,
            panel.examples: {"chosen": example.id if example else None},
            panel.bands: picker,
            panel.pin: request.query_params.get("pin") == "1",
            **preview,
        }

    def first(self, request: gr.Request, stored_image: Any) -> Iterator[Updates]:
        """Answer the request of the link, starting with the stored answer if it matches."""
        question, example, notes = links.read(request.query_params, stored_image)
        sent = isinstance(stored_image, dict) and stored_image.get("landed") is True
        stored = None if notes or model_cache.ready.is_set() else landing.load_stored(model_cache.requested_model())
        if stored and not landing.matches(stored, question, example):
            stored = None

        def show_error(message: str) -> Updates:
            nothing = {} if stored else {self.view: {"id": page_view.number(), "words": {"empty": message}}}
            return self._show_error(message) | nothing

        def steps(run: Run) -> Iterator[Updates]:
            try:
                if stored:
                    yield self._show_stored(stored, sent)
                yield from self._updates(question, {}, run, notes, stored)
            except Refused as error:
                if not question.model or model_cache.has(question.model) or not model_cache.first_model():
                    raise
                other, first = replace(question, model="", layer="", lenient=True), model_cache.first_model()
                title = model_cache.load(first).title
                note = messages.other_model(str(error), title)
                for updates in self._updates(other, {}, run, [*notes, note]):
                    if self.findings in updates:
                        page_view.add_button(updates[self.findings], note, messages.use_model(title), {"model": first})
                    yield updates
            if message := links.missing(request.query_params, question):
                ident = page_view.number()
                yield {self.status: messages.status("idle", message, ident=ident)}

        yield from run_job(request.session_hash, steps, show_error, question=question.signature)

    def change(self, event: gr.EventData, image: str | None, picker: Any, form: Any, pin: Any) -> Updates:
        """Apply the change of a click to the settings, without the queue, before the request."""
        panel = self.panel
        # Compare ids, because Gradio copies updated components.
        target = event.target.elem_id if event.target else None
        nothing = {panel.options: gr.skip()}  # gradio treats an empty dictionary as a value
        if target == panel.image.elem_id:
            return settings_panel.new_image(image, form, picker, pin, panel)
        if target == panel.bands.elem_id:
            return nothing | settings_panel.preview(image, form, picker, panel)
        if target in [choice.elem_id for choice in panel.choices.values()]:
            return nothing
        return nothing | settings_panel.apply_click(event_data(event), panel, form, pin)

    def update(self, request: gr.Request, *values: Any) -> Iterator[Updates]:
        """Answer the current settings; the last values are the checkbox and what the browser sends with a request."""
        *form, _, sent = values
        yield from self._update(request, form, sent)

    def recompute(self, request: gr.Request, *values: Any) -> Iterator[Updates]:
        """Answer the current settings without the cache when Explain is pressed."""
        *form, _, sent = values
        yield from self._update(request, form, sent, again=True)

    def apply(self, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[Updates]:
        """Apply a click to the settings and answer them. The component that was clicked shows the change already."""
        *form, pin, sent = values
        changes = settings_panel.apply_click(event_data(event), self.panel, form[-1], pin)
        image = changes.get(self.panel.image)  # an example, which another event of the click shows
        form = [changes.get(component, value) for component, value in zip(self.panel.inputs, form, strict=True)]
        target = event.target.elem_id if event.target else None
        shown = {} if image else {each: value for each, value in changes.items() if each.elem_id != target}
        yield from self._update(request, form, sent, shown, image)

    def _update(
        self,
        request: gr.Request,
        form: list[Any],
        sent: Any,
        changes: Updates | None = None,
        image: str | None = None,
        again: bool = False,
    ) -> Iterator[Updates]:
        """Answer the settings of a form and show its `changes`; `image` is an example that replaces its image.

        `sent` is what the browser sends with a request, see `page_view.sent_with`.
        """
        question = _question(form if image is None else [None, *form[1:]])
        if image and isinstance(question, Request):
            question = replace(question, image=image)

        def steps(run: Run) -> Iterator[Updates]:
            first = {self.status: messages.computing(page_view.number()), **(changes or {})}
            interrupted = self.trust.interrupt(request.session_hash)
            try:
                if isinstance(question, Refused):
                    yield first
                    raise question
                asked = replace(question, use_cache=not again)
                yield from self._updates(asked, form[-1], run, picker=form[-2], first=first, held=held)
            except Exception:
                if interrupted:
                    yield interrupted
                raise

        signature = "" if isinstance(question, Refused) else question.signature
        number, held = page_view.sent_with(sent)
        order: dict[str, Any] = {"again": again, "number": number}
        yield from run_job(request.session_hash, steps, self._show_error, question=signature, **order)

    def plane(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Show another plane of the current answer without changing the settings."""
        number = integer(event_data(event).get("plane"), -1)

        def steps(run: Run) -> Iterator[Updates]:
            question = from_form(*form)
            run.questions.add(question.signature)
            for step in engine.explain(replace(question, plane=number), run, stages=False):
                if isinstance(step, Answer):
                    yield self._show_map(step, page_view.number())

        yield from run_job(request.session_hash, steps, lambda message: {self.status: error_line(message)})


def _question(form: list[Any]) -> Request | Refused:
    """Return the request of the form, or its error."""
    try:
        return from_form(*form)
    except Refused as error:
        return error
