"""The tab that shows a map over the picture; and the handler behind every question that the page asks."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from ui import examples, landing, links, words
from ui.engine import engine, model_cache, packing, runs
from ui.engine.messages import Answer, Refining, Refused, Request, Settings, Stages, Step, Waiting
from ui.tabs import picture_panel
from ui.tabs.components import canvas
from ui.tabs.picture_panel import Panel

log = logging.getLogger("hooklens")


@dataclass
class Overlay:
    """The components of the tab, and the status line above all tabs."""

    status: gr.HTML
    view: gr.HTML
    planes: gr.HTML
    strip: gr.HTML
    bars: gr.HTML
    findings: gr.HTML

    @property
    def outputs(self) -> list[Any]:
        return [self.status, self.view, self.planes, self.strip, self.bars, self.findings]


def build(status: gr.HTML) -> Overlay:
    """Lay the tab out."""
    with gr.Row(elem_id="hl-view"):
        with gr.Column(scale=3, min_width=320):
            view = canvas("overlay", "hl-overlay", empty=words.EMPTY_OVERLAY)
            planes = canvas("planes", "hl-planes")
        with gr.Column(scale=1, min_width=220, elem_id="hl-side"):
            bars = canvas("classes", "hl-bars", look="bars", title=words.BARS_TITLE)
            findings = canvas("findings", "hl-findings")
    strip = canvas("strip", "hl-strip", title=words.STRIP_TITLE)
    return Overlay(status, view, planes, strip, bars, findings)


class Show:
    """Answers the page's questions, a yield a step; those in `seen`, and `snippets`, learn what is shown now."""

    def __init__(self, panel: Panel, overlay: Overlay, seen: list[gr.HTML], snippets: gr.HTML) -> None:
        self.panel, self.overlay, self.seen, self.snippets = panel, overlay, seen, snippets

    @property
    def outputs(self) -> list[Any]:
        panel = self.panel
        own = [*panel.inputs[1:], panel.notice, panel.stop, panel.top]
        return [*own, *self.overlay.outputs, *self.seen, self.snippets]

    def opened(self, request: gr.Request) -> dict[Any, Any]:
        """When a page opens: the picture that its link names, else the first example."""
        chosen, _ = _example(links.read(request.query_params))
        return {self.panel.picture: str(chosen.path), self.panel.examples: {"chosen": chosen.id}}

    def first(self, request: gr.Request) -> Iterator[dict[Any, Any]]:
        """The answer to what the link asks for."""
        wanted = links.read(request.query_params)
        chosen, notes = _example(wanted)
        kept = None if wanted or model_cache.ready.is_set() else landing.stored(model_cache.wish())
        if kept:
            yield self._landed(kept)
        names = [wanted.get(name, "") for name in ("model", "layer", "class", "method")]
        yield from self._answer(
            lambda: Request(str(chosen.path), *names, wanted.get("options", {})), {}, request, notes, kept=kept
        )

    def _landed(self, kept: dict[str, Any]) -> dict[Any, Any]:
        """The first example's answer, before the network is there."""
        panel, overlay, ident = self.panel, self.overlay, packing.number()
        fields = {"model": panel.model, "layer": panel.layer, "method": panel.method}
        classes = {**kept["classes"], "id": ident}
        return {
            **{fields[name]: gr.update(choices=[each], value=each[1]) for name, each in kept["choices"].items()},
            overlay.status: words.landed(kept["status"], words.loading(0), ident),
            overlay.view: {**kept["view"], "id": ident},
            overlay.findings: {**kept["findings"], "id": ident},
            overlay.strip: {**kept["strip"], "id": ident},
            overlay.bars: classes,
            panel.top: classes,
        }

    def again(self, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        """When anything was chosen: the settings as they stand on the page, unless just these are shown already.

        A choice by mouse raises Gradio's event twice, and a click during a run is repeated after it.
        """
        *settings, shown = values
        if isinstance(shown, dict) and shown.get("asked") == _signature(settings):
            yield {self.overlay.status: gr.skip()}
        else:
            yield from self._answer(lambda: picture_panel.asked(*settings), settings[-1], request, [], shown)

    def _answer(
        self,
        ask: Any,
        known: Any,
        request: gr.Request,
        notes: list[str],
        shown: Any = None,
        kept: dict[str, Any] | None = None,
    ) -> Iterator[dict[Any, Any]]:
        with runs.begin(request.session_hash) as run:
            done = None
            try:
                asked = ask()
                for step in engine.explain(asked, run):
                    if isinstance(step, Settings):
                        yield self._resolved(step, asked, known)
                    elif isinstance(step, Answer):
                        yield self._answered(step, asked, notes)
                        done = step
                    elif isinstance(step, Waiting) and kept:
                        line = words.landed(kept["status"], step.sentence, packing.number())
                        yield {self.overlay.status: line}
                    else:
                        yield self._shown(step)
                if done and done.share >= 1 and not run.asked:  # whole, with its strip: not to be computed again
                    yield {self.panel.top: packing.classes(done, packing.number()) | {"asked": _shows(done, asked)}}
            except Refused as refusal:
                yield self._refused(str(refusal), shown)
            except Exception:
                log.exception("an explanation failed")  # the visitor gets a sentence, the server's log the rest
                yield self._refused(words.UNKNOWN, shown)

    def plane(self, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        """Another plane of the answer that is shown; the settings stay as they are."""
        data = getattr(event, "_data", None)
        number = data.get("plane") if isinstance(data, dict) else None
        overlay = self.overlay
        with runs.begin(request.session_hash) as run:
            try:
                asked = replace(picture_panel.asked(*values), plane=number if isinstance(number, int) else -1)
                for step in engine.explain(asked, run, stages=False):
                    if isinstance(step, Answer):
                        yield self._drawn(step, packing.number())
            except Refused as refusal:
                yield {overlay.status: words.status("error", str(refusal), ident=packing.number())}
            except Exception:
                log.exception("a plane failed")
                yield {overlay.status: words.status("error", words.UNKNOWN, ident=packing.number())}

    def _drawn(self, step: Answer, ident: int) -> dict[Any, Any]:
        """The map itself, its line and its pager."""
        return {
            self.overlay.status: words.answered(step, ident),
            self.overlay.view: packing.answer(step, ident),
            self.overlay.planes: packing.planes(step, ident),
        }

    def _refused(self, sentence: str, shown: Any) -> dict[Any, Any]:
        """A sentence in the status line; the old result stays, but the same question may be asked again."""
        line = words.status("error", sentence, ident=packing.number())
        top = {**shown, "asked": None} if isinstance(shown, dict) else gr.skip()
        found = {self.overlay.status: line, self.panel.stop: gr.update(interactive=False), self.panel.top: top}
        return found if model_cache.first_model() else {**picture_panel.offered(self.panel), **found}

    def _resolved(self, settings: Settings, asked: Request, known: Any) -> dict[Any, Any]:
        found = picture_panel.resolved(settings, asked, known, self.panel, packing.form(settings))
        found[self.snippets] = {"id": packing.number(), "items": words.snippets(settings)}
        if asked.picture is None:
            ident = packing.number()
            found |= {
                self.overlay.status: words.status("idle", words.NO_PICTURE, ident=ident),
                self.overlay.view: {"id": ident},
                self.overlay.planes: None,
                self.overlay.strip: None,
                self.overlay.bars: None,
                self.overlay.findings: None,
                self.panel.top: None,
            }
        return found

    def _shown(self, step: Step) -> dict[Any, Any]:
        overlay, ident = self.overlay, packing.number()
        if isinstance(step, Waiting):
            return {overlay.status: words.status("busy", step.sentence, ident=ident, fraction=step.fraction)}
        if isinstance(step, Refining):
            line = {
                overlay.status: words.refining(step.settings, step.fraction, step.seconds, ident),
                self.panel.stop: gr.update(interactive=True),
            }
            return line if step.map is None else {**line, overlay.view: packing.refining(step, ident)}
        if isinstance(step, Stages):
            return {overlay.strip: packing.stages(step, ident)}
        raise TypeError(f"an explanation has no step {type(step).__name__}")

    def _answered(self, step: Answer, asked: Request, notes: list[str]) -> dict[Any, Any]:
        overlay, settings, ident = self.overlay, step.settings, packing.number()
        step = replace(step, settings=replace(settings, notes=(*notes, *settings.notes)))
        classes = packing.classes(step, ident)
        return {
            **self._drawn(step, ident),
            overlay.bars: classes,
            overlay.findings: packing.findings(step, ident),
            self.panel.stop: gr.update(interactive=False),
            self.panel.top: classes,
            **{each: {"key": str(ident)} for each in self.seen},
        }


def _example(wanted: dict[str, Any]) -> tuple[examples.Example, list[str]]:
    """The example that a link names, else the first one and a note."""
    there = examples.all_examples()
    first, name = next(iter(there.values())), wanted.get("example", "")
    if name and name not in there:
        return first, [words.not_found(words.EXAMPLE, name, [], first.id)]
    return there.get(name, first), []


def _shows(step: Answer, asked: Request) -> str:
    """The signature of the settings that this answer shows."""
    found = step.settings
    target = "" if found.target is None else found.loaded.names[found.target]
    names = [asked.picture, found.loaded.name, found.layer, target, found.method.name]
    return _signature([*names, {"values": found.options}])


def _signature(settings: list[Any]) -> str:
    """Tells settings apart, as the page holds them."""
    picture, model, layer, target, method, options = settings
    values = options.get("values") if isinstance(options, dict) else None
    return json.dumps([picture, model, layer, target or "", method, values or {}], sort_keys=True, default=str)


class Turn:
    """The unqueued step before every question: end what this visitor's page computes; apply the click."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel

    def __call__(self, event: gr.EventData, request: gr.Request, options: Any, top: Any) -> dict[Any, Any]:
        runs.stop(request.session_hash)
        data = getattr(event, "_data", None)
        if event.target is self.panel.picture:
            return {self.panel.examples: {"chosen": None}}
        found: dict[Any, Any] = {self.panel.options: gr.skip()}  # gradio takes an empty dictionary for a value
        if event.target is self.panel.explain and isinstance(top, dict):
            return {self.panel.top: {**top, "asked": None}}
        if event.target in (self.panel.model, self.panel.layer, self.panel.target, self.panel.method):
            return found
        found |= picture_panel.changes(data, self.panel)
        values = picture_panel.remedied(data, options)
        return {**found, self.panel.options: values} if values else found


def wire(demo: gr.Blocks, panel: Panel, overlay: Overlay, show: Show) -> None:
    """Every choice first ends the old run (at once, past the queue), then asks anew with what the page shows then."""
    shared: dict[str, Any] = {
        "outputs": show.outputs,
        "concurrency_id": "model",
        "concurrency_limit": 1,
        "api_visibility": "private",
        "show_progress": "minimal",
        "show_progress_on": [overlay.status],
    }
    quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    # The picture is set by a plain handler: Gradio mixes up a file that only one step of a generator sends.
    demo.load(show.opened, None, [panel.picture, panel.examples], **quick).then(show.first, None, **shared)
    clicks = [
        panel.examples.select,
        panel.top.select,
        panel.notice.select,
        overlay.bars.select,
        overlay.findings.select,
        overlay.strip.select,
    ]
    choices = [
        panel.picture.input,
        panel.model.input,
        panel.layer.input,
        panel.target.input,
        panel.method.input,
        panel.explain.click,
    ]
    turned = gr.on(
        [*choices, *clicks],
        Turn(panel),
        [panel.options, panel.top],
        [*panel.outputs, panel.top],
        trigger_mode="multiple",
        **quick,
    )
    turned.then(show.again, [*panel.inputs, panel.top], trigger_mode="always_last", **shared)
    pages = {**shared, "outputs": [overlay.status, overlay.view, overlay.planes]}
    overlay.planes.select(show.plane, panel.inputs, trigger_mode="always_last", **pages)
