"""The parts of the view of many images, and the steps through them."""

from __future__ import annotations

from saliscope import limits
from saliscope.images import examples
from saliscope.page.batch import messages as batch_messages
from saliscope.page.elements import Part, example_items

STEPS = Part("batch/steps", "hl-steps", terms=batch_messages.STEPS)
MANY_HEAD = Part(
    "batch/head",
    "hl-many-head",
    value=batch_messages.FOR_CLASS,
    title=batch_messages.TITLE,
    text=batch_messages.TEXT,
)
MANY = Part(
    "batch/batch",
    "hl-many",
    terms=batch_messages.TERMS
    | {"examples": batch_messages.TERMS["examples"].format(count=len(examples.all_examples()))},
    limits={"count": limits.BATCH, "bytes": limits.BATCH_BYTES, "file": limits.FILE},
    examples=[item["file"] for item in example_items()],
)
