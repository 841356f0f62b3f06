"""The page as a tree of elements, in reading order: what is where, and which script draws it with which texts.

Nothing here needs torch, so the page is served before torch is imported.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from saliscope.compute import api_messages, messages
from saliscope.compute.channels import messages as channels_messages
from saliscope.compute.compare import messages as compare_messages
from saliscope.compute.concepts import messages as concepts_messages
from saliscope.compute.erase import messages as erase_messages
from saliscope.compute.lab import messages as lab_messages
from saliscope.compute.models import messages as models_messages
from saliscope.compute.ranking import messages as ranking_messages
from saliscope.page.api import parts as api
from saliscope.page.batch import messages as batch_messages
from saliscope.page.batch import parts as batch
from saliscope.page.channels import parts as channels
from saliscope.page.compare import parts as compare
from saliscope.page.concepts import parts as concepts
from saliscope.page.elements import Element, Part, box
from saliscope.page.erase import parts as erase
from saliscope.page.lab import parts as lab
from saliscope.page.maps import parts as maps
from saliscope.page.methods import parts as methods
from saliscope.page.models import parts as models
from saliscope.page.overlay import parts as overlay
from saliscope.page.panel import messages as panel_messages
from saliscope.page.panel import parts as panel
from saliscope.page.rail import parts as rail
from saliscope.page.ranking import parts as ranking
from saliscope.page.share import parts as share
from saliscope.page.shared.glossary import GLOSSARY as WORDS
from saliscope.page.shared.messages import NAVIGATION, TOUR
from saliscope.page.trust import parts as trust


class View(NamedTuple):
    """A view of the page."""

    id: str
    title: str
    content: tuple[Element | str, ...]
    in_menu: bool = False
    """Whether it is in the menu "More"."""
    within: str = ""
    """The view whose entry in the navigation it shares, as a second part."""
    part: str = ""
    """Its title among the parts of that entry; by default `title`."""


def _explain() -> Element:
    return box(
        "hl-view",
        box("hl-stage", overlay.OVERLAY, maps.PLANES, share.BUNDLE, class_="hl-column"),
        box("hl-network", rail.RAIL),
        box("hl-side", maps.BARS, methods.GUIDE, overlay.FINDINGS, trust.TRUST, class_="hl-column"),
    )


def _channels() -> Element:
    return box(
        "hl-features",
        Element("div", channels.GRID, channels.GRID_STATUS, class_="hl-column"),
        box(
            "hl-channels-pane",
            channels.OPENED,
            channels.CHANNEL,
            channels.WHY,
            channels.FACTS,
            channels.UNIT,
            channels.ARITHMETIC,
            class_="hl-column",
        ),
        class_="hl-row",
    )


def _lab() -> tuple[Element, Element]:
    parts = {"expression": lab.EXPRESSION, "training": lab.TRAINING, "image": lab.DEPTH}
    titles = {"expression": lab_messages.EXPRESSION, "training": lab_messages.TRAINING, "image": lab_messages.IMAGE}
    bar = Part("navigation/inner_tabs", "hl-lab-tabs", tabs=list(titles.items()), label=lab_messages.LAB)
    sections = [
        Element("div", part, role="tabpanel", data_tab=name, id=f"hl-lab-{name}", hidden=name != "expression")
        for name, part in parts.items()
    ]
    return bar, box("hl-lab", *sections)


VIEWS = (
    View("overlay", messages.OVERLAY, (_explain(),)),
    View("compare", compare_messages.COMPARE, (compare.COMPARE,), part=compare_messages.MAPS),
    View("models", models_messages.TITLE, (models.MODELS,), within="compare", part=models_messages.PART),
    View("ranking", ranking_messages.RANKING, (ranking.RANKING,), within="compare"),
    View("features", channels_messages.FEATURES, (channels.CHANGE, _channels())),
    View("concepts", concepts_messages.TITLE, (concepts.CONCEPTS,), in_menu=True),
    View("many", batch_messages.BATCH, (batch.MANY_HEAD, batch.MANY)),
    View("erase", erase_messages.ERASE, (erase.ERASE,), in_menu=True),
    View("lab", lab_messages.LAB, _lab(), in_menu=True),
    View(
        "api",
        messages.API,
        (box("hl-api-text", re.sub("`(.*?)`", r"<code>\1</code>", api_messages.API_TEXT)), api.SNIPPET_LIST),
        in_menu=True,
    ),
)
FIRST = VIEWS[0].id


def _section(view: View) -> Element:
    """Return the section of a view, with buttons for the parts of its entry if it has several."""
    entry = view.within or view.id
    parts = [(other.id, other.part or other.title) for other in VIEWS if entry in (other.id, other.within)]
    bar = [Part("navigation/parts", f"hl-parts-{view.id}", parts=parts, shown=view.id)] if len(parts) > 1 else []
    attributes: dict[str, Any] = {"role": "tabpanel", "data_tab": view.id, "hidden": view.id != FIRST}
    return box(f"hl-tab-{view.id}", *bar, *view.content, **attributes, class_="hl-column")


def _navigation() -> Part:
    entries = [view for view in VIEWS if not view.within]
    listed = {menu: [(view.id, view.title) for view in entries if view.in_menu == menu] for menu in (False, True)}
    within = {view.id: view.within for view in VIEWS if view.within}
    return Part(
        "navigation/navigation",
        "hl-navigation",
        terms=NAVIGATION,
        tour=TOUR,
        glossary=WORDS,
        views=listed[False],
        more=listed[True],
        within=within,
    )


PAGE = box(
    "hl-page",
    box(
        "hl-top",
        box(
            "hl-head",
            f"<a id='hl-skip' href='#hl-status'>{messages.SKIP}</a><h1>{messages.TITLE}</h1><p>{messages.TAGLINE}</p>",
        ),
        _navigation(),
        class_="hl-row",
    ),
    overlay.FOLD,
    box(
        "hl-main",
        box(
            "hl-left",
            box("hl-unused", panel_messages.UNUSED),
            panel.IMAGE,
            batch.STEPS,
            panel.CROP,
            panel.BANDS,
            panel.EXAMPLES,
            box(
                "hl-settings",
                panel.MODEL,
                panel.NOTICE,
                panel.PREPROCESSING,
                panel.LAYER,
                panel.TARGET,
                panel.PIN,
                panel.METHOD,
                Element("details", f"<summary>{messages.OPTIONS}</summary>", panel.OPTIONS, id="hl-more"),
                class_="hl-column",
            ),
            panel.ACTIONS,
            class_="hl-column",
        ),
        box("hl-right", overlay.STATUS, box("hl-tabs", *map(_section, VIEWS)), class_="hl-column"),
        class_="hl-row",
    ),
)
"""The whole page."""


def schema() -> list[dict[str, Any]]:
    """Return all parts for the script that starts them: id, module, value and props."""
    return [{"id": part.id, "module": part.module, "value": part.value, "props": part.props} for part in PAGE.parts()]
