"""What each step of an answer changes on the page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from saliscope.compute import engine, headline, messages, model_cache, removal
from saliscope.compute.answers import Answer, Refining, Scene, Settings, Stages, Step, Waiting
from saliscope.compute.bundles import links
from saliscope.compute.jobs.runs import Run
from saliscope.compute.methods import costs
from saliscope.compute.objects import messages as object_messages
from saliscope.compute.request import Request
from saliscope.compute.trust import engine as checks
from saliscope.page.channels import view as channels_view
from saliscope.page.components import view as page_view
from saliscope.page.maps.view import listed
from saliscope.page.methods import guide, picker
from saliscope.page.overlay import landing
from saliscope.page.panel import panel as settings_panel
from saliscope.page.panel.panel import Panel
from saliscope.page.rail.tab import Rail
from saliscope.page.shared.tab import Tab, Updates, error_line
from saliscope.page.trust.tab import Trust


class Steps(Tab):
    """The updates of the components of the Explain view, which `build` of a subclass creates, by step."""

    panel: Panel
    status: gr.HTML
    view: gr.HTML
    planes: gr.HTML
    bars: gr.HTML
    findings: gr.HTML
    guide: gr.HTML
    strip: gr.HTML
    rail: Rail
    trust: Trust

    def _updates(
        self,
        question: Request,
        form: Any,
        run: Run,
        notes: Iterable[str] = (),
        stored: dict[str, Any] | None = None,
        picker: Any = None,
        first: Updates | None = None,
        held: Collection[str] = (),
    ) -> Iterator[Updates]:
        """Yield the updates of a request: `first`, settings, partial maps, the map, and the maps of all blocks.

        What precedes a map that takes a moment is sent with the map, because each step takes the browser and the
        server about as long as the map. `held` are the crops that the browser has, see `page_view.answer`.
        """
        answer, shown, loaded, pending = None, None, None, first or {}
        try:
            for step in engine.explain(question, run):
                ident = page_view.number()
                if isinstance(step, Settings):
                    loaded = step.loaded
                    notes = [*notes, *(() if form else links.unknown_options(step, question))]  # a form may be outdated
                    run.questions.add(_signature(question, step, step.names))
                elif isinstance(step, Answer):
                    run.questions.add(_signature(question, step.settings, step.names))
                    shown = step, ident
                answer = step if isinstance(step, Answer) else None
                pending |= self._updates_of(step, question, form, ident, notes, stored, picker, held)
                if not (form and question.image and _precedes_a_map(step)):
                    yield pending
                    pending = {}
        except Exception:
            if pending:
                yield pending
            raise
        if answer:
            yield self.rail.without_stages(answer, page_view.number())
        if loaded and (updates := settings_panel.update_layers(loaded, self.panel)):
            yield updates
        if shown and removal.measure(shown[0], question, run):
            # The id of the map: scripts ignore the sentence if they have received the status of a newer request.
            yield {self.status: headline.status(*shown)}

    def _updates_of(
        self,
        step: Step,
        question: Request,
        form: Any,
        ident: int,
        notes: Iterable[str],
        stored: dict[str, Any] | None,
        picker: Any,
        held: Collection[str],
    ) -> Updates:
        """Return the updates of one step."""
        if isinstance(step, Settings):
            return self._show_settings(step, question, form, notes)
        if isinstance(step, Waiting) and stored:
            return {self.status: messages.landed(stored, step.message, ident)}
        if isinstance(step, Waiting):
            line = messages.status("busy", step.message, ident=ident, fraction=step.fraction)
            return {self.status: line, self.panel.stop: gr.update(interactive=True)}
        if isinstance(step, Scene):
            return self._show_objects(step, question, ident, notes)
        if isinstance(step, Refining):
            return self._show_partial_map(step, ident)
        if isinstance(step, Stages):
            return {self.strip: page_view.stages(step, ident)}
        updates = self._show_answer(step, notes, ident, held)
        line = updates[self.status]
        if stored and stored["headline"][0] == line["headline"][0]:
            line |= {"headline": stored["headline"], "settled": True}  # until the experiment is repeated here
        bands = settings_panel.update_bands(step.settings, question, picker, self.panel)
        return {**updates, **bands, **self.rail.identify_norms(step, question)}

    def _show_settings(self, settings: Settings, question: Request, form: Any, notes: Iterable[str]) -> Updates:
        updates = settings_panel.update_settings(settings, question, form, self.panel)
        updates |= self._update_followers(settings) | self.rail.update_drawing(settings, form)
        if question.image is None:
            ident = page_view.number()
            updates |= dict.fromkeys([self.planes, self.strip, self.bars, self.guide])
            updates[self.findings] = page_view.notes([*notes, *settings.notes], ident)
            updates[self.status] = messages.status("idle", messages.NO_IMAGE, ident=ident)
            updates[self.view] = {"id": ident, "words": {"empty": messages.EMPTY_OVERLAY}}
            updates |= {self.page.answered: page_view.answered(ident)} | self.rail.without_answer(settings)
        return updates

    def _show_objects(self, step: Scene, question: Request, ident: int, notes: Iterable[str]) -> Updates:
        """Show the detected objects, or the image and the reason if there are none."""
        objects = page_view.objects(step, ident)
        updates = {self.bars: objects, **settings_panel.update_objects(step, question, self.panel)}
        if step.chosen is None:
            updates |= {
                self.status: object_messages.nothing(step, ident),
                self.view: page_view.image_only(step, ident),
                self.findings: page_view.reason(step, [*notes, *step.settings.notes], ident),
                self.planes: None,
                self.guide: None,
                self.strip: {"id": page_view.number(), "chosen": step.settings.layer, "stages": []},
                **self.rail.without_answer(step.settings),
                **self.trust.without_answer(),
                self.panel.stop: gr.update(interactive=False),
                self.page.answered: page_view.answered(ident),
            }
        return updates

    def _show_partial_map(self, step: Refining, ident: int) -> Updates:
        line = messages.refining(step, ident) | {"headline": headline.before_the_map(step)}
        updates = {self.status: line, self.panel.stop: gr.update(interactive=True)}
        if step.probabilities is not None:
            updates[self.bars] = page_view.classes(step, ident)
        if step.map is None:
            return updates
        return {**updates, self.view: page_view.refining(step, ident), self.guide: guide.pack(step, ident)}

    def _show_answer(self, step: Answer, notes: Iterable[str], ident: int, held: Collection[str]) -> Updates:
        settings = step.settings
        step = replace(step, settings=replace(settings, notes=(*notes, *settings.notes)))
        classes = page_view.classes(step, ident) | listed(step)
        return {
            **self._show_map(step, ident, held),
            self.bars: classes,
            self.findings: page_view.findings(step, ident),
            **self.trust.identify_map(step, ident),
            self.panel.stop: gr.update(interactive=False),
            self.page.fold: {"text": messages.folded(step)},
            self.page.answered: page_view.answered(ident),
            **({self.panel.method: picker.update(settings)} if step.is_mistimed else {}),
            **(self._update_followers(settings) if settings.bands else {}),
        }

    def _update_followers(self, settings: Settings) -> Updates:
        """Update the components that follow the settings."""
        followers = {component: value(settings) for component, value in self.page.followers.items()}
        return {self.page.question: page_view.question(settings), **followers}

    def _show_map(self, step: Answer, ident: int, held: Collection[str] = ()) -> Updates:
        """Show the map, its status and its pager."""
        checked = checks.find(step.settings.key)
        return {
            self.status: headline.status(step, ident, checked.verdict if checked else None),
            self.view: page_view.answer(step, ident, held),
            self.planes: channels_view.planes(step, ident),
            self.guide: guide.pack(step, ident),
        }

    def _show_stored(self, stored: dict[str, Any], sent: bool) -> Updates:
        """Show the stored answer before the network is loaded; the page may already have all but the maps of blocks."""
        ident, updates = page_view.number(), {}
        if not sent:
            shown = [*self.panel.choices.values(), self.status, self.view, self.guide, self.findings, self.bars]
            values = landing.values(stored, ident, messages.loading(0))
            components = {component.elem_id: component for component in [*shown, self.rail.network]}
            updates = {components[name]: value for name, value in values.items()}
        return {**updates, self.strip: {**stored["strip"], "id": ident}}

    def _show_error(self, message: str) -> Updates:
        """Show an error in the status line; the old result stays, marked as outdated."""
        updates = {self.status: error_line(message), self.panel.stop: gr.update(interactive=False)}
        return updates if model_cache.first_model() else {**settings_panel.update_models(self.panel), **updates}


def _precedes_a_map(step: Step) -> bool:
    """Return whether these settings can be sent with their map, because it will take less than a moment.

    Each message takes server and browser together about as long as such a map.
    """
    return isinstance(step, Settings) and costs.is_instant(step.method.name, step.loaded)


def _signature(question: Request, settings: Settings, names: dict[str, str]) -> str:
    """Return the signature of the request with its names resolved."""
    bands = settings.bands.text if settings.bands else question.bands
    resolved: dict[str, Any] = {**names, "options": settings.options, "bands": bands}
    return replace(question, **resolved).signature
