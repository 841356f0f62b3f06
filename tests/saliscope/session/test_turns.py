"""The queue: quick jobs before long ones, long jobs that yield their turn, and one job per request."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from saliscope import limits
from saliscope.session.jobs import memory, runs
from saliscope.session.jobs.memory import FreedMemory
from saliscope.session.jobs.runs import Run
from saliscope.session.jobs.turns import QUICK, Turns


@pytest.fixture
def turns() -> Turns:
    return Turns()


def has_turn(turns: Turns, turn) -> bool:
    return turns._holder is turn


def test_quick_jobs_come_before_long_ones_and_each_kind_in_order(turns: Turns) -> None:
    with ExitStack() as first:
        holder = first.enter_context(turns.enqueue(Run(9), long=True))
        assert not list(turns.wait(holder))
        rest = [ExitStack() for _ in range(4)]
        kinds = [True, False, True, False]
        waiting = [
            stack.enter_context(turns.enqueue(Run(9), long=long)) for stack, long in zip(rest, kinds, strict=True)
        ]
        first.close()
        order = []
        for _ in range(4):
            number = next(k for k in range(4) if has_turn(turns, waiting[k]))
            order.append(number)
            rest[number].close()
        assert order == [1, 3, 0, 2] and turns._holder is None and not turns._waiting


def test_a_long_job_yields_its_turn_and_its_time_limit_is_extended(turns: Turns) -> None:
    with turns.enqueue(Run(9), long=True) as long:
        list(turns.wait(long))
        until = long.run.until
        done = threading.Event()

        def quick() -> None:
            with turns.enqueue(Run(9), long=False) as turn:
                assert not list(turns.wait(turn))
                time.sleep(0.2)
                done.set()

        thread = threading.Thread(target=quick)
        thread.start()
        while not turns._waiting:
            time.sleep(0.01)
        turns.report(long, 0.1)
        assert not done.is_set(), "it has not yet computed for half a second"
        long.start -= QUICK
        turns.report(long, 0.1)
        assert done.is_set() and has_turn(turns, long)
        assert 0.15 < long.run.until - until < 5 and long.spent < 5
        thread.join()
        turns.report(long, 0.5)  # no job is waiting, so it continues


def test_long_jobs_wait_for_one_another(turns: Turns) -> None:
    with turns.enqueue(Run(9), long=True) as one, turns.enqueue(Run(9), long=True) as other:
        list(turns.wait(one))
        one.start -= 1.0
        turns.report(one, 0.25)
        assert has_turn(turns, one) and one.left == pytest.approx(3.0, abs=0.5)
        seconds, ahead, other_user = next(turns.wait(other))
        assert 1 < seconds < 4 and ahead == 1 and not other_user


def test_a_long_job_yields_to_a_brief_one_which_yields_to_quick_ones(turns: Turns) -> None:
    """The experiment of one visitor does not wait for the checks of another, and slows no click."""
    order: list[str] = []

    def work(name: str, long: bool, brief: bool) -> None:
        with turns.enqueue(Run(9), long=long, min_seconds=0.0, brief=brief) as turn:
            assert not [*turns.wait(turn)]
            order.append(f"{name} starts")
            if brief:
                quick = threading.Thread(target=work, args=("quick", False, False))
                quick.start()
                while not any(not other.long for other in turns._waiting):
                    time.sleep(0.01)
                turns.report(turn, 0.5)
                quick.join()
            order.append(f"{name} ends")

    with turns.enqueue(Run(9), long=True, min_seconds=0.0) as check:
        list(turns.wait(check))
        brief = threading.Thread(target=work, args=("brief", True, True))
        brief.start()
        while not turns._waiting:
            time.sleep(0.01)
        turns.report(check, 0.1)
        assert has_turn(turns, check)
        brief.join()
    assert order == ["brief starts", "quick starts", "quick ends", "brief ends"]


def test_a_stopped_job_does_not_wait(turns: Turns) -> None:
    with turns.enqueue(Run(9, "ann"), long=True) as one, turns.enqueue(Run(9, "bob"), long=False) as other:
        list(turns.wait(one))
        waiting = turns.wait(other)
        assert next(waiting)[2], "the job of another user"
        other.run.stop()
        assert not list(waiting)
    assert turns._holder is None and not turns._waiting


def test_a_job_that_yielded_its_turn_can_be_stopped(turns: Turns) -> None:
    with turns.enqueue(Run(9), long=True) as long, turns.enqueue(Run(9), long=False):
        list(turns.wait(long))
        long.start -= QUICK
        threading.Timer(0.2, long.run.stop).start()
        turns.report(long, 0.5)
        assert long.run.cancelled and not has_turn(turns, long)
    assert turns._holder is None and not turns._waiting


def test_one_job_per_request() -> None:
    """Selecting with the mouse raises an event twice, and a stopped job is not restarted by the second event."""
    with runs.start("ann", question="a") as first:
        with runs.start("ann", question="a") as second:
            assert first and second is None and not first.cancelled
        runs.stop("ann")
    assert first.cancelled and not first.superseded
    with runs.start("ann", question="a") as third:
        assert third is None
    with runs.start("ann", question="a", again=True) as fourth:
        assert fourth and first.superseded
        fourth.questions.add("a, resolved")
        with runs.start("ann", question="a, resolved") as fifth, runs.start("bob", question="a") as other:
            assert fifth is None and other
        with runs.start("ann", question="b") as sixth:
            assert sixth and fourth.superseded and not other.superseded
    runs.end("ann")
    runs.end("bob")
    assert not {"ann", "bob"} & runs._last.keys()


def test_a_request_overtaken_by_a_newer_one_does_not_start() -> None:
    with runs.start("ann", question="2", number=2) as newer:
        with runs.start("ann", question="1", number=1) as older:
            assert older is None and newer and not newer.cancelled
        with runs.start("ann", question="3", number=3) as newest:
            assert newest and newer.superseded
    runs.end("ann")


def test_freed_memory_is_returned_after_the_last_job_and_above_the_limit(turns: Turns, monkeypatch) -> None:
    monkeypatch.setattr(memory, "IDLE", 0.05)
    released, used = threading.Event(), [0]
    freed = turns._memory = FreedMemory(released.set, lambda: used[0])
    freed.job_ended(is_last=False)
    freed.job_ended(is_last=True)
    freed.job_started()
    assert not released.wait(0.2), "the next job uses the freed memory"
    used[0] = limits.ALLOCATED + 1
    freed.job_ended(is_last=False)
    assert released.wait(5), "above the limit"
    released.clear()
    used[0] = 0
    with turns.enqueue(Run(9), long=True) as turn:
        assert not list(turns.wait(turn)) and not released.wait(0.2)
    assert released.wait(5), "after the last job"
