"""The queue: quick jobs before long ones, long jobs that yield their turn, and one job per request."""

from __future__ import annotations

import threading
import time

import pytest

from saliscope import limits
from saliscope.session.jobs import memory, runs
from saliscope.session.jobs import turns as module
from saliscope.session.jobs.memory import FreedMemory
from saliscope.session.jobs.runs import Run
from saliscope.session.jobs.turns import QUICK, Turns
from saliscope.session.jobs.visitors import Visitor


@pytest.fixture
def turns() -> Turns:
    return Turns()


def wait_for(turns: Turns, count: int) -> None:
    """Wait until so many jobs wait for their turn."""
    while turns.waiting() < count:
        time.sleep(0.001)


def order(turns: Turns, holder: Run, *jobs: tuple[Run, bool]) -> list[str]:
    """Return the names of jobs, quick or long, in the order of their turns; they come while another job computes."""
    found, threads = list[str](), list[threading.Thread]()

    def work(run: Run, long: bool) -> None:
        with turns.enqueue(run, long=long) as turn:
            list(turns.wait(turn))
            found.append(run.name)

    with turns.enqueue(holder, long=True) as first:
        assert not list(turns.wait(first))
        for given in jobs:
            threads.append(threading.Thread(target=work, args=given))
            threads[-1].start()
            wait_for(turns, len(threads))
    for thread in threads:
        thread.join(5)
    assert not turns.waiting()
    return found


def of(session: str, address: str, listeners: int = 1) -> tuple[Run, bool]:
    run = Run(9, session)
    run.visitor = Visitor(session, address, listeners)
    return run, False


def test_quick_jobs_come_before_long_ones_and_each_kind_in_order(turns: Turns) -> None:
    jobs = [(Run(9, name), name.startswith("long")) for name in ("long1", "quick1", "long2", "quick2")]
    assert order(turns, Run(9), *jobs) == ["quick1", "quick2", "long1", "long2"]


def test_the_turn_goes_to_the_address_that_waits_longest(turns: Turns) -> None:
    same = [of(name, "6.6.6.6") for name in "abbc"]
    jobs = [*same, of("ann", "1.1.1.1"), of("unread", "2.2.2.2", listeners=0)]
    holder, _ = of("a", "6.6.6.6")
    assert order(turns, holder, *jobs) == ["ann", "b", "c", "a", "b", "unread"]
    late = of("late", "7.7.7.7")
    assert order(turns, Run(9), same[0], late) == ["a", "late"], "what was before an idle moment does not count"


def test_a_long_job_yields_its_turn_and_its_time_limit_is_extended(turns: Turns) -> None:
    done = threading.Event()

    def quick() -> None:
        with turns.enqueue(Run(9), long=False) as turn:
            list(turns.wait(turn))
            time.sleep(0.2)
            done.set()

    with turns.enqueue(Run(9), long=True) as long:
        list(turns.wait(long))
        until = long.run.until
        thread = threading.Thread(target=quick)
        thread.start()
        wait_for(turns, 1)
        turns.report(long, 0.1)
        assert not done.is_set(), "it has not yet computed for half a second"
        long.start -= QUICK
        turns.report(long, 0.1)
        assert done.is_set() and 0.15 < long.run.until - until < 5 and long.spent < 5
        thread.join()
        turns.report(long, 0.5)  # no job is waiting, so it continues


def test_long_jobs_wait_for_one_another(turns: Turns) -> None:
    with turns.enqueue(Run(9), long=True) as one, turns.enqueue(Run(9), long=True) as other:
        list(turns.wait(one))
        one.start -= 1.0
        turns.report(one, 0.25)
        assert one.left == pytest.approx(3.0, abs=0.5)
        seconds, ahead, other_user = next(turns.wait(other))
        assert 1 < seconds < 4 and ahead == 1 and not other_user


def test_a_long_job_yields_to_a_brief_one_which_yields_to_quick_ones(turns: Turns) -> None:
    """The experiment of one visitor does not wait for the checks of another, and slows no click."""
    found: list[str] = []

    def work(name: str, brief: bool) -> None:
        with turns.enqueue(Run(9), long=brief, min_seconds=0.0, brief=brief) as turn:
            list(turns.wait(turn))
            found.append(f"{name} starts")
            if brief:
                quick = threading.Thread(target=work, args=("quick", False))
                quick.start()
                wait_for(turns, 2)  # with the check
                turns.report(turn, 0.5)
                quick.join()
            found.append(f"{name} ends")

    with turns.enqueue(Run(9), long=True, min_seconds=0.0) as check:
        list(turns.wait(check))
        brief = threading.Thread(target=work, args=("brief", True))
        brief.start()
        wait_for(turns, 1)
        turns.report(check, 0.1)
        found.append("check continues")
        brief.join()
    assert found == ["brief starts", "quick starts", "quick ends", "brief ends", "check continues"]


def test_a_job_that_waits_or_yielded_its_turn_can_be_stopped(turns: Turns) -> None:
    with turns.enqueue(Run(9, "ann"), long=True) as long, turns.enqueue(Run(9, "bob"), long=False) as other:
        list(turns.wait(long))
        waiting = turns.wait(other)
        assert next(waiting)[2], "the job of another user"
        other.run.stop()
        assert not list(waiting)
        long.start -= QUICK
        threading.Timer(0.1, long.run.stop).start()
        turns.report(long, 0.5)
        assert long.run.cancelled
    assert order(turns, Run(9), (Run(9, "next"), False)) == ["next"]


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
    with runs.start("ann", question="b") as again, runs.start("bob", question="a") as other:
        assert again and other, "a visitor who comes back"


def test_a_request_overtaken_by_a_newer_one_does_not_start() -> None:
    with runs.start("eve", question="2", number=2) as newer:
        with runs.start("eve", question="1", number=1) as older:
            assert older is None and newer and not newer.cancelled
        with runs.start("eve", question="3", number=3) as newest:
            assert newest and newer.superseded


def test_all_jobs_of_a_user_who_leaves_are_stopped() -> None:
    with runs.start("joe") as one, runs.start("joe/features") as two, runs.start("joel") as other:
        runs.end("joe")
        assert one.cancelled and two.cancelled and not other.cancelled  # type: ignore[union-attr]


def test_freed_memory_is_returned_after_the_last_job_and_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "IDLE", 0.05)
    released, used = threading.Event(), [0]
    freed = FreedMemory(released.set, lambda: used[0])
    monkeypatch.setattr(module, "FreedMemory", lambda: freed)
    turns = Turns()
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


def test_a_check_yields_its_turn_to_a_click_at_once(turns: Turns) -> None:
    """Other long jobs first compute for half a second."""
    for min_seconds, left in ((0.0, False), (0.5, True)):
        with (
            turns.enqueue(Run(9), long=True, min_seconds=min_seconds) as long,
            turns.enqueue(Run(9), long=False) as click,
        ):
            assert not list(turns.wait(long))
            long.run.stop()  # do not wait for the turn to come back
            turns.report(long, 0.1)
            assert bool(next(turns.wait(click), None)) is left
