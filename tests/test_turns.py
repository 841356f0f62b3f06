"""Whose turn it is: quick jobs before long ones, a long one aside for quick ones, and one job for a question."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from ui.engine import runs
from ui.engine.runs import Run
from ui.engine.turns import QUICK, Turns


@pytest.fixture
def turns() -> Turns:
    return Turns()


def has_turn(turns: Turns, turn) -> bool:
    return turns._holder is turn


def test_quick_jobs_come_before_long_ones_and_each_kind_in_order(turns: Turns) -> None:
    with ExitStack() as first:
        holder = first.enter_context(turns.place(Run(9), long=True))
        assert not list(turns.wait(holder))
        rest = [ExitStack() for _ in range(4)]
        kinds = [True, False, True, False]
        waiting = [stack.enter_context(turns.place(Run(9), long=long)) for stack, long in zip(rest, kinds, strict=True)]
        first.close()
        order = []
        for _ in range(4):
            number = next(k for k in range(4) if has_turn(turns, waiting[k]))
            order.append(number)
            rest[number].close()
        assert order == [1, 3, 0, 2] and turns._holder is None and not turns._waiting


def test_a_long_job_steps_aside_at_its_report_and_its_deadline_moves(turns: Turns) -> None:
    with turns.place(Run(9), long=True) as long:
        list(turns.wait(long))
        until = long.run.until
        done = threading.Event()

        def quick() -> None:
            with turns.place(Run(9), long=False) as turn:
                assert not list(turns.wait(turn))
                time.sleep(0.2)
                done.set()

        thread = threading.Thread(target=quick)
        thread.start()
        while not turns._waiting:
            time.sleep(0.01)
        turns.report(long, 0.1)
        assert not done.is_set(), "it has computed for less than half a second"
        long.since -= QUICK
        turns.report(long, 0.1)
        assert done.is_set() and has_turn(turns, long)
        assert 0.15 < long.run.until - until < 5 and long.spent < 5
        thread.join()
        turns.report(long, 0.5)  # nobody waits: it goes on


def test_long_jobs_wait_for_one_another(turns: Turns) -> None:
    with turns.place(Run(9), long=True) as one, turns.place(Run(9), long=True) as other:
        list(turns.wait(one))
        one.since -= 1.0
        turns.report(one, 0.25)
        assert has_turn(turns, one) and one.left == pytest.approx(3.0, abs=0.5)
        seconds, stranger = next(turns.wait(other))
        assert 1 < seconds < 4 and not stranger


def test_a_stopped_job_waits_no_longer(turns: Turns) -> None:
    with turns.place(Run(9, "ann"), long=True) as one, turns.place(Run(9, "bob"), long=False) as other:
        list(turns.wait(one))
        waiting = turns.wait(other)
        assert next(waiting)[1], "another visitor's"
        other.run.stop()
        assert not list(waiting)
    assert turns._holder is None and not turns._waiting


def test_a_job_that_steps_aside_can_be_stopped(turns: Turns) -> None:
    with turns.place(Run(9), long=True) as long, turns.place(Run(9), long=False):
        list(turns.wait(long))
        long.since -= QUICK
        threading.Timer(0.2, long.run.stop).start()
        turns.report(long, 0.5)
        assert long.run.cancelled and not has_turn(turns, long)
    assert turns._holder is None and not turns._waiting


def test_one_job_for_a_question() -> None:
    """A choice by mouse raises its event twice, and a stopped answer counts: it does not begin again by itself."""
    with runs.begin("ann", question="a") as first:
        with runs.begin("ann", question="a") as second:
            assert first and second is None and not first.cancelled
        runs.stop("ann")
    assert first.cancelled and not first.superseded
    with runs.begin("ann", question="a") as third:
        assert third is None
    with runs.begin("ann", question="a", again=True) as fourth:
        assert fourth and first.superseded
        fourth.questions.add("a, resolved")
        with runs.begin("ann", question="a, resolved") as fifth, runs.begin("bob", question="a") as other:
            assert fifth is None and other
        with runs.begin("ann", question="b") as sixth:
            assert sixth and fourth.superseded and not other.superseded
    runs.end("ann")
    runs.end("bob")
    assert not {"ann", "bob"} & runs._last.keys()
