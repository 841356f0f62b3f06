"""Visitors in turn: places by session and address, jobs to which no one listens, and the order of turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from saliscope import limits
from saliscope.errors import Refused
from saliscope.session.jobs import places as module
from saliscope.session.jobs import runs, visitors
from saliscope.session.jobs.places import Places
from saliscope.session.jobs.runs import Run
from saliscope.session.jobs.turns import Turns
from saliscope.session.jobs.visitors import Visitor

LIMITS = {"quick": 4, "long": 4}


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(limits, "PLACES", LIMITS)
    return Places()


def run_of(session: str, address: str, listeners: int = 1) -> Run:
    run = Run(9, session)
    run.visitor = Visitor(session, address, listeners)
    return run


def job(places: Places, visitor: Visitor) -> Run:
    """A job that waits for a place without a thread of its own."""
    run = Run(9, visitor.session)
    run.visitor = visitor
    places.arrive(run)
    places._waiting[run] = "quick"
    places._grant()
    return run


def placed(places: Places) -> list[str]:
    return [run.visitor.session for run in places._placed]


def test_a_session_has_two_places_and_some_jobs_that_wait(places: Places) -> None:
    visitor = Visitor("ann", "1.1.1.1", 1)
    jobs = [job(places, visitor) for _ in range(2 + limits.WAITING)]
    assert placed(places) == ["ann", "ann"] == ["ann"] * limits.RUNNING
    with pytest.raises(Refused, match="You have 6 requests in progress, which is the maximum"):
        job(places, visitor)
    jobs[0].stop()  # a job that was stopped but has not noticed yet does not count
    places.leave(jobs[1])
    assert list(places._placed) == [jobs[0], jobs[2], jobs[3]]
    for each in jobs:
        places.leave(each)
    assert not places._placed and not places._waiting and not places._last


def test_a_session_may_have_as_many_jobs_on_a_busy_server(places: Places) -> None:
    """Nobody has more when others have all places, but nobody has less either."""
    for number in range(4):
        job(places, Visitor("", f"1.1.1.{number}", 1))
    visitor = Visitor("ann", "2.2.2.2", 1)
    for _ in range(limits.RUNNING + limits.WAITING):
        assert job(places, visitor) not in places._placed
    with pytest.raises(Refused, match="You have 6 requests"):
        job(places, visitor)


def test_an_address_that_invents_sessions_leaves_a_place_to_others(places: Places) -> None:
    attacks = [job(places, Visitor(f"invented{number}", "6.6.6.6", 1)) for number in range(20)]
    assert len(places._placed) == 3, "of four"
    visitor = job(places, Visitor("ann", "1.1.1.1", 1))
    assert visitor in places._placed
    second = job(places, Visitor("bob", "2.2.2.2", 1))
    places.leave(attacks[0])
    assert second in places._placed, "the address with the fewest places comes first"


def test_a_class_behind_one_address_is_served_in_turn(places: Places) -> None:
    """Thirty sessions with six jobs each at once: none is refused, and every session gets a place before any second."""
    pupils = [Visitor(f"pupil{number}", "9.9.9.9", 1) for number in range(30)]
    first, served = [job(places, pupil) for pupil in pupils for _ in range(6)], list[str]()
    while places._placed:
        current = next(iter(places._placed))
        served.append(current.visitor.session)
        places.leave(current)
    assert len(served) == len(first) and len(set(served[:32])) == 30


def test_one_address_may_have_half_of_all_jobs_and_others_find_room(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOBS", 30)

    def fill(address: str) -> int:
        for number in range(100):
            try:
                job(places, Visitor(f"{address}-{number}", address, 1))
            except Refused as refusal:
                assert "Try again in a minute" in str(refusal)
                return number
        return 100

    assert [fill(f"6.6.6.{number}") for number in range(3)] == [15, 8, 4]
    job(places, Visitor("ann", "1.1.1.1", 1))


def test_a_visitor_does_not_wait_for_places_of_jobs_without_a_listener(places: Places) -> None:
    """Also one behind the same address; so many that memory is bounded."""
    unread = [job(places, Visitor("", "6.6.6.6", 0)) for _ in range(9)]
    assert sum(each in places._placed for each in unread) == 3, "of four"
    visitors_ = [job(places, Visitor(f"ann{number}", "6.6.6.6", 1)) for number in range(9)]
    assert sum(each in places._placed for each in visitors_) == 3
    assert job(places, Visitor("bob", "2.2.2.2", 1)) in places._placed
    for each in unread[:3]:
        places.leave(each)
    assert not any(each in places._placed for each in unread[3:]), "they come last"


def test_jobs_without_a_listener_come_last_and_end(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    holders = [job(places, Visitor(f"holder{number}", f"1.1.1.{number}", 1)) for number in range(4)]
    unread, read = (job(places, Visitor(name, "2.2.2.2", name == "read")) for name in ("unread", "read"))
    places.leave(holders[0])
    assert read in places._placed and unread not in places._placed
    now = time.monotonic()
    assert module.end_unheard([unread, read], now + limits.UNHEARD / 2) == 0
    assert module.end_unheard([unread, read], now + limits.UNHEARD + 1) == 1 and unread.cancelled and not read.cancelled
    local = Run(9)
    assert module.end_unheard([local], now + 1000) == 0, "a job of the program itself has no listener"


def test_a_long_job_leaves_its_place_to_quick_ones(places: Places) -> None:
    jobs = [job(places, Visitor("", f"1.1.1.{number % 3}", 1)) for number in range(4)]
    assert len(places._placed) == 4
    waiting = job(places, Visitor("ann", "2.2.2.2", 1))
    assert waiting not in places._placed
    places.become_long(jobs[0])
    assert waiting in places._placed and places._placed[jobs[0]] == "long"


def test_waiting_says_how_many_are_ahead_and_ends_with_a_place_or_a_stop(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT", 0.02)
    holders = [job(places, Visitor(f"h{number}", f"1.1.1.{number}", 1)) for number in range(4)]
    run = run_of("ann", "2.2.2.2")
    places.arrive(run)
    steps = places.wait(run)
    assert next(steps) == 4 and places.waiting() == 1
    threading.Timer(0.05, places.leave, [holders[0]]).start()
    assert list(steps)[-1:] in ([4], []) and run in places._placed
    assert list(places.wait(run)) == [], "it has a place"
    other = run_of("bob", "3.3.3.3")
    places.arrive(other)
    steps = places.wait(other)
    next(steps)
    other.stop()
    assert list(steps) == [] and other not in places._placed


def test_the_turn_goes_to_the_address_that_waits_longest() -> None:
    turns, order = Turns(), list[str]()
    with ExitStack() as first:
        holder = first.enter_context(turns.enqueue(run_of("a", "6.6.6.6"), long=False))
        assert not list(turns.wait(holder))
        stacks = [ExitStack() for _ in range(6)]
        who = [("a", "6.6.6.6"), ("b", "6.6.6.6"), ("b", "6.6.6.6"), ("c", "6.6.6.6"), ("ann", "1.1.1.1")]
        jobs = [run_of(*each) for each in who] + [run_of("unread", "2.2.2.2", listeners=0)]
        waiting = [stack.enter_context(turns.enqueue(run, long=False)) for stack, run in zip(stacks, jobs, strict=True)]
        first.close()
        for _ in jobs:
            number = next(k for k, turn in enumerate(waiting) if turns._holder is turn)
            order.append(jobs[number].visitor.session)
            stacks[number].close()
    assert order == ["ann", "b", "c", "a", "b", "unread"] and not turns._last


def test_runs_belong_to_the_visitor_of_their_session() -> None:
    visitor = visitors.arrive("known", "1.1.1.1")
    with runs.start("known/rail") as run:
        assert run is not None and run.visitor is visitor
    asking = Visitor("", "2.2.2.2", 1)
    token = visitors.current.set(asking)
    with runs.start(None) as run:
        assert run is not None and run.visitor is asking
    visitors.current.reset(token)
    with runs.start("unknown") as run:
        assert run is not None and run.visitor.is_listening and not run.visitor.address
    with visitor.listening():
        assert visitor.is_listening
    assert not visitor.is_listening and visitors.arrive("known", "3.3.3.3") is visitor


def test_many_sessions_are_forgotten_except_those_with_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "MAX_KNOWN", 5)
    monkeypatch.setattr(visitors, "_known", type(visitors._known)())
    first = visitors.arrive("first", "1.1.1.1")
    with first.listening():
        for number in range(50):
            visitors.arrive(f"invented{number}", "6.6.6.6")
        assert len(visitors._known) <= 6 and visitors.find("first") is first


@pytest.fixture
def unread() -> Iterator[str]:
    name = "reads-nothing"
    visitors.arrive(name, "1.1.1.1")
    yield name


def test_the_answer_of_a_session_without_a_stream_is_not_sent(unread: str) -> None:
    from saliscope.page.shared.tab import run_job

    sent = list[str]()
    handler = run_job(unread, lambda run: iter(["large"]), str)
    thread = threading.Thread(target=lambda: sent.extend(handler))
    thread.start()
    while not runs.running():
        time.sleep(0.01)
    visitor = visitors.find(unread)
    assert visitor is not None and sent == []
    for run in list(runs._running):
        run.stop()
    thread.join(5)
    assert not thread.is_alive() and sent == []
    with visitor.listening():
        assert list(run_job(unread, lambda run: iter(["large"]), str)) == ["large"]


def test_a_visitor_with_too_many_jobs_gets_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    from saliscope.page.shared.tab import run_job

    monkeypatch.setattr(limits, "JOBS", 0)
    visitor = visitors.arrive("refused", "1.1.1.1")
    with visitor.listening():
        (message,) = run_job("refused", lambda run: iter(["step"]), lambda text: f"error: {text}")
    assert message.startswith("error: 0 requests are in progress") and "Try again" in message
