"""The parts of the Channels view."""

from __future__ import annotations

from saliscope.compute import messages
from saliscope.compute.arithmetic import messages as arithmetic_messages
from saliscope.compute.bundles.messages import SAVE
from saliscope.compute.channels import messages as channels_messages
from saliscope.compute.interventions import messages as change_messages
from saliscope.page.elements import Part, example_items
from saliscope.page.shared.messages import MAP, SECOND_IMAGE

CHANGE = Part(
    "interventions/interventions",
    "hl-change",
    terms={**change_messages.CHANGE, "second": SECOND_IMAGE},
    examples=example_items(),
)
GRID = Part("channels/channels", "hl-grid", empty=channels_messages.EMPTY_GRID, terms=channels_messages.GRID)
GRID_STATUS = Part("shared/line", "hl-grid-status", terms=messages.STATUS)
OPENED = Part("channels/channel", "hl-opened", terms=channels_messages.OPEN)
CHANNEL = Part(
    "overlay/overlay",
    "hl-channel",
    empty=channels_messages.EMPTY_CHANNEL,
    terms=MAP,
    save=SAVE,
    chart=True,
    explains_cells=True,
)
WHY = Part("channels/cell_gradient", "hl-channel-why", terms=channels_messages.OPEN)
FACTS = Part("channels/channel_facts", "hl-channel-facts", terms=channels_messages.OPEN)
UNIT = Part("channels/unit", "hl-unit", terms=channels_messages.UNIT)
ARITHMETIC = Part("arithmetic/arithmetic", "hl-arithmetic", terms=arithmetic_messages.TERMS)
