"""Interrupt a call at a chosen instruction."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

FILES = ("/explainers/", "contextlib.py", "grad_mode.py", "_python_dispatch.py", "overrides.py", "autocast_mode.py")
FILES += ("modules/module.py", "utils/hooks.py", "_tensor.py")


@cache
def _after_with(code: CodeType) -> frozenset[int]:
    """Return the positions directly after a lock or another context is entered, and directly before it is left.

    CPython delivers no signal there, so a `with` block always releases its lock.
    """
    found, previous = set[int](), ""
    instructions = [*dis.get_instructions(code)]
    for at, instruction in enumerate(instructions):
        leaves = [each.opname for each in instructions[at : at + 5]]
        if previous == "BEFORE_WITH":
            found.add(instruction.offset)
        if leaves[:3] == ["LOAD_CONST"] * 3 and "CALL" in leaves:  # __exit__(None, None, None)
            found |= {each.offset for each in instructions[at : at + leaves.index("CALL") + 1]}
        previous = instruction.opname
    return frozenset(found)


def interrupt(call: Callable[[], Any], at: int | None = None, files: tuple[str, ...] = FILES) -> int:
    """Run the call, raise KeyboardInterrupt at instruction `at` or soon after, and return the instructions passed.

    Counted are bytecode instructions in these files. The interrupt is not raised again.
    """
    count = 0

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if at is not None and count >= at and frame.f_lasti not in _after_with(frame.f_code):
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
