"""Interrupt a call at a chosen instruction."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

FILES = ("/explainers/", "contextlib.py", "grad_mode.py", "_python_dispatch.py", "overrides.py", "autocast_mode.py")
FILES += ("modules/module.py", "utils/hooks.py", "_tensor.py")


def interrupt(call: Callable[[], Any], at: int | None = None, files: tuple[str, ...] = FILES) -> int:
    """Run the call, raise KeyboardInterrupt before the instruction number `at`, and return the instructions passed.

    Counted are bytecode instructions in these files. The interrupt is not raised again.
    """
    count = 0

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return step

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        if any(name in frame.f_code.co_filename for name in files):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return step
        return None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    except (KeyboardInterrupt, RuntimeError):  # torch's own mode stack may fail in an interrupted `__exit__`
        pass
    finally:
        sys.settrace(before)
    return count
