"""The tab that shows a map over the picture; and the handler behind every question that the page asks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from ui import engine, examples, links, packing, picture_panel, runs, words
from ui.parts import canvas
from ui.picture_panel import Panel
from ui.steps import Answer, Refining, Refused, Request, Settings, Stages, Step, Waiting

log = logging.getLogger("hooklens")


@dataclass
class Overlay:
    """The components of the tab, and the status line above all tabs."""

    status: gr.HTML
    view: gr.HTML
    strip: gr.HTML
    bars: gr.HTML
    findings: gr.HTML

    @property
    def outputs(self) -> list[Any]:
        return [self.status, self.view, self.strip, self.bars, self.findings]


def build(status: gr.HTML) -> Overlay:
    """Lay the tab out."""
    with gr.Row(elem_id="hl-view"):
        with gr.Column(scale=3, min_width=320):
            view = canvas("overlay", "hl-overlay", empty=words.EMPTY_OVERLAY)
        with gr.Column(scale=1, min_width=220, elem_id="hl-side"):
            bars = canvas("classes", "hl-bars", look="bars", title=words.BARS_TITLE)
            findings = canvas("findings", "hl-findings")
    strip = canvas("strip", "hl-strip", title=words.STRIP_TITLE)
    return Overlay(status, view, strip, bars, findings)


class Show:
    """Answers the page's questions, a yield a step; `grid` and `snippets` learn what is shown now."""

    def __init__(self, panel: Panel, overlay: Overlay, grid: gr.HTML, snippets: gr.HTML) -> None:
        self.panel, self.overlay, self.grid, self.snippets = panel, overlay, grid, snippets

    @property
    def outputs(self) -> list[Any]:
        panel = self.panel
        return [*panel.outputs, panel.stop, panel.top, *self.overlay.outputs, self.grid, self.snippets]

    def first(self, request: gr.Request) -> Iterator[dict[Any, Any]]:
        """When a page opens: what its link asks for, else the first example."""
        wanted, there = links.read(request.query_params), examples.all_examples()
        notes = []
        chosen = there.get(wanted.get("example", ""))
        if chosen is None:
            chosen = next(iter(there.values()))
            if "example" in wanted:
                notes.append(words.not_found(words.EXAMPLE, wanted["example"], [], chosen.id))
        yield {self.panel.picture: str(chosen.path), self.panel.examples: {"chosen": chosen.id}}
        asked = Request(
            str(chosen.path), wanted.get("model", ""), wanted.get("layer", ""), wanted.get("class", ""), wanted.get("method", ""),
            wanted.get("options", {}),
        )
        yield from self._answer(lambda: asked, {}, request, notes)

    def again(self, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        """When anything was chosen: the settings as they stand on the page."""
        yield from self._answer(lambda: picture_panel.asked(*values), values[-1], request, [])

    def _answer(self, ask: Any, known: Any, request: gr.Request, notes: list[str]) -> Iterator[dict[Any, Any]]:
        status = self.overlay.status
        with runs.begin(request.session_hash) as run:
            try:
                asked = ask()
                for step in engine.explain(asked, run):
                    if isinstance(step, Settings):
                        yield self._resolved(step, asked, known)
                    else:
                        yield self._shown(step, notes)
            except Refused as refusal:
                yield {status: words.status("error", str(refusal), ident=packing.number()), self.panel.stop: gr.update(interactive=False)}
            except Exception:
                log.exception("an explanation failed")  # the visitor gets a sentence, the server's log the rest
                yield {status: words.status("error", words.UNKNOWN, ident=packing.number()), self.panel.stop: gr.update(interactive=False)}

    def _resolved(self, settings: Settings, asked: Request, known: Any) -> dict[Any, Any]:
        found = picture_panel.resolved(settings, asked, known, self.panel, packing.form(settings))
        found[self.snippets] = {"id": packing.number(), "items": words.snippets(settings)}
        if asked.picture is None:
            ident = packing.number()
            found |= {
                self.overlay.status: words.status("idle", words.NO_PICTURE, ident=ident), self.overlay.view: {"id": ident},
                self.overlay.strip: None, self.overlay.bars: None, self.overlay.findings: None, self.panel.top: None,
            }
        return found

    def _shown(self, step: Step, notes: list[str]) -> dict[Any, Any]:
        overlay, ident = self.overlay, packing.number()
        if isinstance(step, Waiting):
            return {overlay.status: words.status("busy", step.sentence, ident=ident, fraction=step.fraction)}
        if isinstance(step, Refining):
            line = {overlay.status: words.refining(step.settings, step.fraction, step.seconds, ident), self.panel.stop: gr.update(interactive=True)}
            return line if step.map is None else {**line, overlay.view: packing.refining(step, ident)}
        if isinstance(step, Stages):
            return {overlay.strip: packing.stages(step, ident)}
        assert isinstance(step, Answer)
        step = replace(step, settings=replace(step.settings, notes=(*notes, *step.settings.notes)))
        classes = packing.classes(step, ident)
        return {
            overlay.status: words.answered(step, ident), overlay.view: packing.answer(step, ident), overlay.bars: classes,
            overlay.findings: packing.findings(step, ident), self.panel.top: classes, self.panel.stop: gr.update(interactive=False),
            self.grid: gr.HTML(wanted=f"{ident}"),
        }


class Turn:
    """The unqueued step before every question: end what this visitor's page is computing, and change what the click means."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel

    def __call__(self, event: gr.EventData, request: gr.Request, options: Any) -> dict[Any, Any]:
        runs.stop(request.session_hash)
        data = getattr(event, "_data", None)
        if event.target is self.panel.picture:
            return {self.panel.examples: {"chosen": None}}
        if event.target in (self.panel.model, self.panel.layer, self.panel.target, self.panel.method, self.panel.explain):
            return {}
        found = picture_panel.changes(data, self.panel)
        values = picture_panel.remedied(data, options)
        return {**found, self.panel.options: values} if values else found


def wire(demo: gr.Blocks, panel: Panel, overlay: Overlay, show: Show) -> None:
    """Every choice first ends the old run (at once, past the queue), then asks anew with what the page shows then."""
    shared: dict[str, Any] = {
        "outputs": show.outputs, "concurrency_id": "model", "concurrency_limit": 1, "api_visibility": "private",
        "show_progress": "minimal", "show_progress_on": [overlay.status],
    }
    demo.load(show.first, None, **shared)
    clicks = [panel.examples.select, panel.top.select, panel.notice.select, overlay.bars.select, overlay.findings.select, overlay.strip.select]
    choices = [panel.picture.input, panel.model.input, panel.layer.input, panel.target.input, panel.method.input, panel.explain.click]
    turned = gr.on(
        [*choices, *clicks], Turn(panel), [panel.options], panel.outputs, queue=False, trigger_mode="multiple",
        show_progress="hidden", api_visibility="private",
    )
    turned.then(show.again, panel.inputs, trigger_mode="always_last", **shared)
