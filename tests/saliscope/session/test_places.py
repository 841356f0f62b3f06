"""Visitors in turn: places by session and address, jobs to which no one listens, and sessions that are remembered."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

import pytest

from saliscope import limits
from saliscope.errors import Refused
from saliscope.session.jobs import places as module
from saliscope.session.jobs import runs, visitors
from saliscope.session.jobs.places import Places
from saliscope.session.jobs.runs import Run
from saliscope.session.jobs.visitors import Visitor


class Wake(threading.Event):
    """An event for which a job does not wait, so that it needs no thread; it counts places in the order of grants."""

    grants = itertools.count()

    def set(self) -> None:
        self.number = next(self.grants)
        super().set()

    def wait(self, timeout: float | None = None) -> bool:
        raise TimeoutError


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(limits, "PLACES", {"quick": 4, "long": 1})
    return Places()


def job(places: Places, visitor: Visitor, kind: str = "quick") -> Run:
    """Return a new job of a visitor that waits for a place, or has one."""
    run = Run(9, visitor.session)
    run.visitor, run.wake = visitor, Wake()
    places.arrive(run)
    with contextlib.suppress(TimeoutError):
        list(places.wait(run, kind))
    return run


def hold(places: Places) -> list[Run]:
    """Return four jobs of four addresses, which have all quick places."""
    return [job(places, Visitor(f"holder{number}", f"1.1.1.{number}", 1)) for number in range(4)]


def has_place(run: Run) -> bool:
    return run.wake.is_set() and not run.cancelled


def test_a_session_has_two_places_and_some_jobs_that_wait(places: Places) -> None:
    ann, bob = Visitor("ann", "2.2.2.2", 1), Visitor("bob", "3.3.3.3", 1)
    jobs = [job(places, ann) for _ in range(limits.RUNNING + limits.WAITING)]
    assert [has_place(each) for each in jobs] == [True] * limits.RUNNING + [False] * limits.WAITING
    with pytest.raises(Refused, match="You have 6 requests in progress, which is the maximum"):
        job(places, ann)
    jobs[0].stop()  # a job that was stopped but has not noticed yet does not count
    places.leave(jobs[1])
    assert [has_place(each) for each in jobs[2:]] == [True, True, False, False]
    for each in jobs:
        places.leave(each)
    assert not places.waiting()

    holders = hold(places)
    busy = [job(places, ann) for _ in range(limits.RUNNING + limits.WAITING)]
    with pytest.raises(Refused, match="You have 6 requests"):
        job(places, ann)
    assert not any(map(has_place, busy)), "others have all places, but nobody may have fewer jobs"
    later = job(places, bob)
    places.leave(holders[0])
    assert has_place(busy[0]) and not has_place(later), "what was served before all jobs ended does not count"


def test_an_address_that_invents_sessions_leaves_a_place_to_others(places: Places) -> None:
    attacks = [job(places, Visitor(f"invented{number}", "6.6.6.6", 1)) for number in range(20)]
    assert sum(map(has_place, attacks)) == 3, "of four"
    assert has_place(job(places, Visitor("ann", "1.1.1.1", 1)))
    second = job(places, Visitor("bob", "2.2.2.2", 1))
    places.leave(attacks[0])
    assert has_place(second), "the address with the fewest places comes first"


def test_a_class_behind_one_address_is_served_in_turn(places: Places) -> None:
    """Thirty sessions with six jobs each at once: none is refused, and every session gets a place before any second."""
    pupils = [Visitor(f"pupil{number}", "9.9.9.9", 1) for number in range(30)]
    jobs, served = [job(places, pupil) for pupil in pupils for _ in range(6)], list[str]()
    while jobs:
        current = min(filter(has_place, jobs), key=lambda each: each.wake.number)  # type: ignore[attr-defined]
        served.append(current.visitor.session)
        places.leave(current)
        jobs.remove(current)
    assert len(set(served[:32])) == 30


def test_one_address_may_have_half_of_all_jobs_and_others_find_room(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOBS", 30)
    for number, most in enumerate((15, 8, 4)):
        address = f"6.6.6.{number}"
        for session in range(most):
            job(places, Visitor(f"{address}-{session}", address, 1))
        with pytest.raises(Refused, match="Try again in a minute"):
            job(places, Visitor("another", address, 1))
    job(places, Visitor("ann", "1.1.1.1", 1))


def test_a_visitor_does_not_wait_for_places_of_jobs_without_a_listener(places: Places) -> None:
    """Also one behind the same address; so many that memory is bounded."""
    unread = [job(places, Visitor("", "6.6.6.6", 0)) for _ in range(9)]
    assert sum(map(has_place, unread)) == 3, "of four"
    read = [job(places, Visitor(f"ann{number}", "6.6.6.6", 1)) for number in range(9)]
    assert sum(map(has_place, read)) == 3
    assert has_place(job(places, Visitor("bob", "2.2.2.2", 1)))
    for each in unread[:3]:
        places.leave(each)
    assert not any(map(has_place, unread[3:])), "they come last"


def test_jobs_without_a_listener_come_last_and_end(places: Places) -> None:
    holders = hold(places)
    unread, read = (job(places, Visitor(name, "2.2.2.2", name == "read")) for name in ("unread", "read"))
    places.leave(holders[0])
    assert has_place(read) and not has_place(unread)
    now = time.monotonic()
    assert module.end_unheard([unread, read], now + limits.UNHEARD / 2) == 0
    assert module.end_unheard([unread, read], now + limits.UNHEARD + 1) == 1 and unread.cancelled and not read.cancelled
    assert module.end_unheard([Run(9)], now + 1000) == 0, "a job of the program itself has no listener"


def test_a_long_job_leaves_its_place_to_quick_ones(places: Places) -> None:
    jobs = hold(places)
    waiting = [job(places, Visitor("ann", "2.2.2.2", 1)) for _ in range(2)]
    places.become_long(jobs[0])
    assert [has_place(each) for each in waiting] == [True, False]
    assert not has_place(job(places, Visitor("bob", "3.3.3.3", 1), "long")), "it has the only place of long jobs"
    places.become_long(jobs[1])
    assert not has_place(waiting[1]), "without such a place, a long job keeps that of a quick one"


def test_waiting_says_how_many_are_ahead_and_ends_with_a_place_or_a_stop(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT", 0.02)
    holders, run, other = hold(places), Run(9, "ann"), Run(9, "bob")
    for each, address in ((run, "2.2.2.2"), (other, "3.3.3.3")):
        each.visitor = Visitor(each.name, address, 1)
        places.arrive(each)
    steps = places.wait(run)
    assert next(steps) == 4 and places.waiting() == 1
    threading.Timer(0.05, places.leave, [holders[0]]).start()
    assert list(steps)[-1:] in ([4], []) and has_place(run)
    assert list(places.wait(run)) == [], "it has a place"
    steps = places.wait(other)
    next(steps)
    other.stop()
    assert list(steps) == [] and not has_place(other)


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
    first = visitors.arrive("first", "1.1.1.1")
    with first.listening():
        for number in range(50):
            visitors.arrive(f"invented{number}", "6.6.6.6")
        known = [number for number in range(50) if visitors.find(f"invented{number}")]
        assert visitors.find("first") is first and known in ([46, 47, 48, 49], [45, 46, 47, 48, 49])


def test_an_answer_is_sent_to_a_session_with_a_stream_and_too_many_jobs_get_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from saliscope.page.shared.tab import run_job

    def ask() -> list[str]:
        return list(run_job("reads-nothing", lambda run: iter(["large"]), lambda text: f"error: {text}"))

    visitor, sent = visitors.arrive("reads-nothing", "1.1.1.1"), list[str]()
    thread = threading.Thread(target=lambda: sent.extend(ask()))
    thread.start()
    while not runs.running():
        time.sleep(0.01)
    assert sent == []
    runs.stop_all()
    thread.join(5)
    assert not thread.is_alive() and sent == []
    with visitor.listening():
        assert ask() == ["large"]
        monkeypatch.setattr(limits, "JOBS", 0)
        (message,) = ask()
    assert message.startswith("error: 0 requests are in progress") and "Try again" in message
