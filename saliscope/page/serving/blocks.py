"""Gradio's page without work that ours does not need.

An event of this page has ten inputs and 45 outputs, and each of its steps changes a few of them. For every other
output, Gradio 6.31 creates the component again and computes its configuration twice, which takes 30 ms per step. Each
value also waits for a thread of its own, and stays in memory for each user, for links to a state, which this page does
not use. Values of components that our scripts draw are text, so nothing but `preprocess` and `postprocess` is needed.

Gradio also creates the application with all its routes four times, and the configuration of the page six times, before
it serves the last one, which takes 0.4 s of a start.
"""

from __future__ import annotations

from copy import copy
from typing import Any, TypeGuard

import gradio as gr
from gradio.block_function import BlockFunction
from gradio.blocks import Block
from gradio.state_holder import SessionState

from saliscope.page.components.components import Canvas, Named

UNCHANGED = {"__type__": "update"}
"""What `gr.skip()` returns, and what an event sends for a component that it does not change."""


class Blocks(gr.Blocks):
    """`gr.Blocks` for handlers that return their updates by component."""

    def get_config_file(self) -> Any:
        """Return the configuration of the page; it is empty until the page is complete."""
        return super().get_config_file() if getattr(self, "exited", False) else {}

    async def preprocess_data(
        self, block_fn: BlockFunction, inputs: list[Any], state: SessionState | None, explicit_call: bool = False
    ) -> list[Any]:
        """Return the arguments of a handler for the values of its inputs."""
        if block_fn.component_prop_inputs or len(inputs) != len(block_fn.inputs):
            return list(await super().preprocess_data(block_fn, inputs, state, explicit_call))
        pairs = list(zip(block_fn.inputs, inputs, strict=True))
        rest = [(block, value) for block, value in pairs if not _is_ours(block)]
        part = copy(block_fn)
        part.inputs = [block for block, _ in rest]
        values = iter(await super().preprocess_data(part, [value for _, value in rest], state, explicit_call))
        return [block.preprocess(value) if _is_ours(block) else next(values) for block, value in pairs]

    async def postprocess_data(
        self, block_fn: BlockFunction, predictions: list[Any] | dict[Any, Any], state: SessionState | None
    ) -> list[Any]:
        """Return the messages for the outputs of a handler."""
        if not (isinstance(predictions, dict) and predictions and set(predictions) <= set(block_fn.outputs)):
            packed = await super().postprocess_data(block_fn, predictions, state)
            return [_value_first(message) for message in packed]
        changed = {block: value for block, value in predictions.items() if not _is_update(value) or value != UNCHANGED}
        messages: dict[Any, Any] = {
            block: block.postprocess(value)
            for block, value in changed.items()
            if _is_ours(block) and not _is_update(value)
        }
        part = copy(block_fn)
        part.outputs = [block for block in block_fn.outputs if block in changed and block not in messages]
        if part.outputs:
            packed = await super().postprocess_data(part, {each: changed[each] for each in part.outputs}, state)
            messages.update(zip(part.outputs, map(_value_first, packed), strict=True))
        return [messages.get(block, dict(UNCHANGED)) for block in block_fn.outputs]


class _NoApp:
    """What Gradio creates instead of an application after each change of the page; `launch` creates the real one."""

    @staticmethod
    def create_app(*values: Any, **options: Any) -> None:
        """Create nothing."""


setattr(gr.blocks, "App", _NoApp)  # noqa: B010 mypy refuses a plain assignment


def _value_first(message: Any) -> Any:
    """Return an update with its value in front.

    The browser applies the fields of an update one after another, with a pause between them, and those of all
    components at the same time. An event that follows from the answer would be sent with the old value of a list.
    """
    return {"value": message["value"], **message} if _is_update(message) and "value" in message else message


def _is_ours(block: Block) -> TypeGuard[Canvas | Named]:
    return isinstance(block, (Canvas, Named))


def _is_update(value: Any) -> bool:
    return isinstance(value, dict) and value.get("__type__") == "update"
