"""The tab that shows a map over the picture; its handlers answer every question that the page asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from ui import landing, words
from ui.channels import packing as channels_packing
from ui.engine import engine, model_cache, packing
from ui.engine.messages import Answer, Refining, Refused, Scene, Settings, Stages, Waiting
from ui.engine.request import NAMES, Request, from_form
from ui.engine.runs import Run
from ui.maps.packing import listed
from ui.maps.tab import Beside
from ui.methods import guide
from ui.rail.rail import Rail
from ui.share import links
from ui.share.saving import Saving
from ui.tabs import picture_panel
from ui.tabs.components import canvas
from ui.tabs.tab import AT_ONCE, Tab, Updates, error_line, event_data, integer, job, queued
from ui.trust.tab import Trust


class Overlay(Tab):
    """The map, its planes, the predictions, findings, and all stages of the network; above all tabs the status line."""

    title, id = words.OVERLAY, "overlay"

    def build(self) -> None:
        """Lay the tab out."""
        self.panel, self.status = self.page.panel, self.page.status
        self.page.resolved[self.panel.address] = lambda settings: {
            "id": packing.number(),
            "settings": links.state(settings),
        }
        with gr.Row(elem_id="hl-view"):
            with gr.Column(scale=3, min_width=320):
                self.view = canvas(
                    "overlay/overlay",
                    "hl-overlay",
                    empty=words.SOON,
                    things=words.HIDE,
                    address=True,
                    window="hl-picture",
                )
                self.planes = canvas("maps/planes", "hl-planes")
                self.saving = Saving(self.page)
            with gr.Column(scale=1, min_width=220, elem_id="hl-side"):
                self.bars = canvas("maps/classes", "hl-bars", title=words.BARS_TITLE)
                self.guide = guide.guide("hl-guide")
                self.findings = canvas("panel/findings", "hl-findings")
                self.trust = Trust(self.page, "hl-overlay")
        self.beside = Beside(self.page, "hl-overlay")
        self.rail = Rail(self.page)
        self.strip = self.rail.drawing

    def wire(self) -> None:
        """Every choice asks with what the page shows then; the latest question replaces the visitor's former ones."""
        page, panel = self.page, self.panel
        self.saving.wire()
        shown = [self.status, self.view, self.planes, self.guide]
        outputs = [*panel.inputs[1:], panel.notice, panel.stop, page.fold, *shown, self.bars, self.findings]
        outputs += [*self.rail.outputs, *page.seen, *page.resolved, self.beside.recall, self.trust.strip]
        shared = queued("model", trigger_mode="multiple", show_progress="hidden")
        # The picture is set by a plain handler: Gradio mixes up a file that only one step of a generator sends.
        kept: dict[str, Any] = {"inputs": panel.address, "js": links.script("opened")}  # the visitor's own picture
        opening = [panel.picture, panel.examples, panel.bands, panel.pin]
        loaded = page.demo.load(self.opened, outputs=opening, **kept, **AT_ONCE)
        loaded.then(self.first, outputs=outputs, **kept, **shared)
        clicked = [panel.bands, panel.examples, panel.options, panel.drop, panel.notice]
        clicked += [panel.address, self.view, self.bars, self.findings, self.strip, *page.changing]
        changed = [panel.picture, *panel.named.values()]
        events = [*(each.input for each in changed), *(each.select for each in clicked)]
        shown_now = [panel.picture, panel.bands, panel.options, panel.pin]
        turn = gr.on(events, self.turn, shown_now, panel.outputs, trigger_mode="multiple", **AT_ONCE)
        turn.then(self.ask, panel.inputs, outputs, **shared)
        panel.explain.click(self.ask_again, panel.inputs, outputs, **shared)
        self.planes.select(self.plane, panel.inputs, shown, **shared)
        self.rail.wire()
        self.trust.wire()
        self.beside.wire(self.bars)

    def opened(self, request: gr.Request, kept: Any) -> Updates:
        """When a page opens: the picture that its link names, else the first example; bands for a picture to come."""
        asked, example, _ = links.read(request.query_params, kept)
        panel, picker = self.panel, {"text": asked.bands}
        own = {} if example else picture_panel.previewed(asked.picture, None, picker, self.panel)
        return {
            panel.picture: asked.picture,
            panel.examples: {"chosen": example.id if example else None},
            panel.bands: picker,
            panel.pin: request.query_params.get("pin") == "1",
            **own,
        }

    def first(self, request: gr.Request, kept: Any) -> Iterator[Updates]:
        """The answer to the link's request; meanwhile the stored one, where it answers the same."""
        question, example, notes = links.read(request.query_params, kept)
        stored = None if notes or model_cache.ready.is_set() else landing.stored(model_cache.requested_model())
        if stored and not landing.answers(stored, question, example):
            stored = None

        def refused(sentence: str) -> Updates:
            nothing = {} if stored else {self.view: {"id": packing.number(), "words": {"empty": sentence}}}
            return self._refused(sentence) | nothing

        def steps(run: Run) -> Iterator[Updates]:
            yield from self._steps(question, {}, run, notes, stored)
            if sentence := links.missing(request.query_params, question):
                ident = packing.number()
                yield {self.status: words.status("idle", sentence, ident=ident)}

        yield from job(request.session_hash, steps, refused, question=question.signature)

    def turn(self, event: gr.EventData, picture: str | None, picker: Any, form: Any, pin: Any) -> Updates:
        """The unqueued step before a question: what the click changes in the settings."""
        panel = self.panel
        target = event.target.elem_id  # Gradio copies a component that it has updated: it is not always the panel's
        nothing = {panel.options: gr.skip()}  # gradio takes an empty dictionary for a value
        if target == panel.picture.elem_id:
            return picture_panel.pictured(picture, form, picker, pin, panel)
        if target == panel.bands.elem_id:
            return nothing | picture_panel.previewed(picture, form, picker, panel)
        if target in [choice.elem_id for choice in panel.named.values()]:
            return nothing
        return nothing | picture_panel.changes(event_data(event), panel, form, pin)

    def ask(self, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """When anything was chosen: the settings as they stand on the page."""
        yield from self._asked(request, form)

    def ask_again(self, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """When Explain was pressed: also what is shown already, or was stopped."""
        yield from self._asked(request, form, again=True)

    def _asked(self, request: gr.Request, form: tuple[Any, ...], again: bool = False) -> Iterator[Updates]:
        question = _question(form)

        def steps(run: Run) -> Iterator[Updates]:
            if isinstance(question, Refused):
                raise question
            yield {self.status: words.asked(packing.number())}
            yield from self._steps(replace(question, kept=not again), form[-1], run, picker=form[-2])

        signature = "" if isinstance(question, Refused) else question.signature
        yield from job(request.session_hash, steps, self._refused, question=signature, again=again)

    def plane(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Another plane of the answer that is shown; the settings stay as they are."""
        number = integer(event_data(event).get("plane"), -1)

        def steps(run: Run) -> Iterator[Updates]:
            question = from_form(*form)
            run.questions.add(question.signature)
            for step in engine.explain(replace(question, plane=number), run, stages=False):
                if isinstance(step, Answer):
                    yield self._drawn(step, packing.number())

        yield from job(request.session_hash, steps, lambda sentence: {self.status: error_line(sentence)})

    # Steps as updates

    def _steps(
        self,
        question: Request,
        form: Any,
        run: Run,
        notes: Iterable[str] = (),
        stored: dict[str, Any] | None = None,
        picker: Any = None,
    ) -> Iterator[Updates]:
        """A question on its way: settings, partial maps, the map, the strip of stages."""
        if stored:
            yield self._landed(stored)
        answer = None
        for step in engine.explain(question, run):
            ident = packing.number()
            if isinstance(step, Settings):
                notes = [*notes, *(() if form else links.unknown_options(step, question))]  # a form may be of before
                run.questions.add(_signature(question, step, step.names))
                yield self._resolved(step, question, form)
            elif isinstance(step, Waiting) and stored:
                yield {self.status: words.landed(stored["status"], step.sentence, ident)}
            elif isinstance(step, Waiting):
                line = words.status("busy", step.sentence, ident=ident, fraction=step.fraction)
                yield {self.status: line, self.panel.stop: gr.update(interactive=True)}
            elif isinstance(step, Scene):
                yield self._found(step, question, ident)
            elif isinstance(step, Refining):
                yield self._refining(step, ident)
            elif isinstance(step, Answer):
                answer = step
                run.questions.add(_signature(question, step.settings, step.names))
                yield {
                    **self._answered(step, notes, ident),
                    **picture_panel.picked(step.settings, question, picker, self.panel),
                    **self.rail.answered(step, question),
                }
            elif isinstance(step, Stages):
                answer = None
                yield {self.strip: packing.stages(step, ident)}
        if answer:
            yield self.rail.without_stages(answer, packing.number())

    def _resolved(self, settings: Settings, question: Request, form: Any) -> Updates:
        updates = picture_panel.resolved(settings, question, form, self.panel)
        updates |= self._following(settings) | self.rail.drawn(settings, form) | self.beside.asked(settings)
        if question.picture is None:
            ident = packing.number()
            updates |= dict.fromkeys([self.planes, self.strip, self.bars, self.guide, self.findings])
            updates[self.status] = words.status("idle", words.NO_PICTURE, ident=ident)
            updates[self.view] = {"id": ident, "words": {"empty": words.EMPTY_OVERLAY}}
            updates |= {seen: {"key": str(ident)} for seen in self.page.seen} | self.rail.without_answer(settings)
        return updates

    def _found(self, step: Scene, question: Request, ident: int) -> Updates:
        """What there is to choose from; where nothing is explained, the picture and the reason."""
        found = packing.found(step, ident)
        updates = {self.bars: found, **picture_panel.found(step, question, self.panel)}
        if step.chosen is None:
            updates |= {
                self.status: words.nothing(step, ident),
                self.view: packing.picture_alone(step, ident),
                self.findings: packing.reason(step, ident),
                self.planes: None,
                self.guide: None,
                self.strip: {"id": packing.number(), "chosen": step.settings.layer, "stages": []},
                **self.rail.without_answer(step.settings),
                **self.trust.without_answer(),
                self.panel.stop: gr.update(interactive=False),
                **{seen: {"key": str(ident)} for seen in self.page.seen},
            }
        return updates

    def _refining(self, step: Refining, ident: int) -> Updates:
        updates = {self.status: words.refining(step, ident), self.panel.stop: gr.update(interactive=True)}
        if step.map is None:
            return updates
        return {**updates, self.view: packing.refining(step, ident), self.guide: guide.packed(step, ident)}

    def _answered(self, step: Answer, notes: Iterable[str], ident: int) -> Updates:
        settings = step.settings
        step = replace(step, settings=replace(settings, notes=(*notes, *settings.notes)))
        classes = packing.classes(step, ident) | listed(step)
        return {
            **self._drawn(step, ident),
            self.bars: classes,
            self.findings: packing.findings(step, ident),
            **self.trust.answered(step, ident),
            self.panel.stop: gr.update(interactive=False),
            self.page.fold: {"text": words.folded(step)},
            **{seen: {"key": str(ident)} for seen in self.page.seen},
            **(self._following(settings) if settings.bands else {}),
        }

    def _following(self, settings: Settings) -> Updates:
        """The components that show the settings."""
        return {component: value(settings) for component, value in self.page.resolved.items()}

    def _drawn(self, step: Answer, ident: int) -> Updates:
        """The map itself, its line and its pager."""
        return {
            self.status: words.answered(step, ident),
            self.view: packing.answer(step, ident),
            self.planes: channels_packing.planes(step, ident),
            self.guide: guide.packed(step, ident),
        }

    def _landed(self, stored: dict[str, Any]) -> Updates:
        """The first example's answer, before the network is there."""
        ident, panel = packing.number(), self.panel
        view, classes, findings, strip = (
            {**stored[name], "id": ident} for name in ("view", "classes", "findings", "strip")
        )
        choices = {name: stored["choices"][name] for name in NAMES if name in stored["choices"]}
        return {
            **{panel.named[name]: gr.update(choices=[pair], value=pair[1]) for name, pair in choices.items()},
            self.status: words.landed(stored["status"], words.loading(0), ident),
            self.view: view,
            self.guide: {**stored["guide"], "id": ident},
            self.findings: findings,
            self.strip: strip,
            self.rail.network: stored["network"],
            self.bars: classes,
        }

    def _refused(self, sentence: str) -> Updates:
        """A sentence in the status line; the old result stays, marked as such."""
        updates = {self.status: error_line(sentence), self.panel.stop: gr.update(interactive=False)}
        return updates if model_cache.first_model() else {**picture_panel.offered(self.panel), **updates}


def _question(form: tuple[Any, ...]) -> Request | Refused:
    """What the form asks, or why it cannot."""
    try:
        return from_form(*form)
    except Refused as error:
        return error


def _signature(question: Request, settings: Settings, names: dict[str, str]) -> str:
    """That of the question which the page holds once its names are resolved."""
    bands = settings.bands.text if settings.bands else question.bands
    return replace(question, **names, options=settings.options, bands=bands).signature
