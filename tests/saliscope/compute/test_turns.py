"""Jobs of visitors: places by session and address, the queue of turns, and one job per request."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from saliscope import limits
from saliscope.compute.jobs import memory, runs, visitors
from saliscope.compute.jobs import places as place
from saliscope.compute.jobs import turns as turn_module
from saliscope.compute.jobs.memory import FreedMemory
from saliscope.compute.jobs.places import Places
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import QUICK, Turns
from saliscope.compute.jobs.visitors import Visitor
from saliscope.errors import Refused


class Wake(threading.Event):
    """An event for which a job does not wait, so that it needs no thread."""

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
    while placed := [each for each in jobs if has_place(each)]:
        for each in placed:
            served.append(each.visitor.session)
            places.leave(each)
            jobs.remove(each)
    assert not jobs
    assert len(set(served[:33])) == 30, "in rounds of three"


def test_one_address_may_have_half_of_all_jobs(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert place.end_unheard([unread, read], now + limits.UNHEARD / 2) == 0
    assert place.end_unheard([unread, read], now + limits.UNHEARD + 1) == 1 and unread.cancelled and not read.cancelled
    assert place.end_unheard([Run(9)], now + 1000) == 0, "a job of the program itself has no listener"


def test_a_long_job_leaves_its_place_to_quick_ones(places: Places) -> None:
    jobs = hold(places)
    waiting = [job(places, Visitor("ann", "2.2.2.2", 1)) for _ in range(2)]
    places.become_long(jobs[0])
    assert [has_place(each) for each in waiting] == [True, False]
    assert not has_place(job(places, Visitor("bob", "3.3.3.3", 1), "long")), "it has the only place of long jobs"
    places.become_long(jobs[1])
    assert not has_place(waiting[1]), "without such a place, a long job keeps that of a quick one"


def test_waiting_says_how_many_are_ahead(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "REPORT", 0.02)
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
    assert visitors.arrive("known", "3.3.3.3") is visitor


def test_many_sessions_are_forgotten_except_those_with_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "MAX_KNOWN", 5)
    first = visitors.arrive("first", "1.1.1.1")
    with first.listening():
        for number in range(50):
            visitors.arrive(f"invented{number}", "6.6.6.6")
        known = [number for number in range(50) if visitors.find(f"invented{number}")]
        assert visitors.find("first") is first and known in ([46, 47, 48, 49], [45, 46, 47, 48, 49])


def test_an_answer_is_only_sent_to_a_session_with_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from saliscope.page.events import run_job

    def ask() -> list[str]:
        return list(run_job("reads-nothing", lambda run: iter(["large"]), lambda text: f"error: {text}"))

    visitor = visitors.arrive("reads-nothing", "1.1.1.1")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask)
        while not runs.running():
            time.sleep(0.01)
        runs.stop("reads-nothing")
        time.sleep(0.05)
        assert not answer.done(), "stopped before its stream is open: the visitor waits for the last answer"
        with visitor.listening():
            assert answer.result(5) == ["large"]
        monkeypatch.setattr(limits, "UNHEARD", 0.1)
        assert pool.submit(ask).result(5) == []
        monkeypatch.undo()
    with visitor.listening():
        monkeypatch.setattr(limits, "JOBS", 0)
        (message,) = ask()
    assert message.startswith("error: 0 requests are in progress") and "Try again" in message


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
    """Only to quick jobs: it comes before other long ones."""
    found = list[str]()

    def work(name: str, long: bool) -> None:
        with turns.enqueue(Run(9), long=long) as turn:
            list(turns.wait(turn))
            time.sleep(0.2)
            found.append(name)

    threads = [threading.Thread(target=work, args=each) for each in (("behind", True), ("quick", False))]
    with turns.enqueue(Run(9), long=True) as long:
        list(turns.wait(long))
        until = long.run.until
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_for(turns, number)
        turns.report(long, 0.1)
        assert not found, "it has not yet computed for half a second"
        long.start -= QUICK
        turns.report(long, 0.1)
        assert found == ["quick"] and 0.15 < long.run.until - until < 5 and long.spent < 5
        turns.report(long, 0.5)  # no quick job is waiting, so it continues
    for thread in threads:
        thread.join(5)
    assert found == ["quick", "behind"]


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
                quick.join(5)
            found.append(f"{name} ends")

    with turns.enqueue(Run(9), long=True, min_seconds=0.0) as check:
        list(turns.wait(check))
        brief = threading.Thread(target=work, args=("brief", True))
        brief.start()
        wait_for(turns, 1)
        turns.report(check, 0.1)
        found.append("check continues")
        brief.join(5)
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
    """A request that is sent twice is answered once, and does not restart a stopped job."""
    with runs.start("ann", number=1) as first:
        with runs.start("ann", number=1) as second:
            assert first and second is None and not first.cancelled
        runs.stop("ann")
    assert first.cancelled and not first.superseded
    with runs.start("ann", number=1) as third:
        assert third is None
    with runs.start("ann", number=2) as fourth, runs.start("bob", number=1) as other:
        assert fourth and other and first.superseded
        with runs.start("ann") as fifth:
            assert fifth and fourth.superseded and not other.superseded
    runs.end("ann")
    runs.end("bob")
    with runs.start("ann", number=1) as again, runs.start("bob", number=1) as other:
        assert again and other, "a visitor who comes back"


def test_a_request_overtaken_by_a_newer_one_does_not_start() -> None:
    with runs.start("eve", question="2", number=2) as newer:
        with runs.start("eve", question="1", number=1) as older:
            assert older is None and newer and not newer.cancelled
        with runs.start("eve", question="3", number=3) as newest:
            assert newest and newer.superseded
    with runs.start("joe") as one, runs.start("joe/features") as two, runs.start("joel") as other:
        runs.end("joe")
        assert one.cancelled and two.cancelled and not other.cancelled, "all jobs of a user who leaves"


def test_freed_memory_is_returned_after_the_last_job_and_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "IDLE", 0.05)
    released, used = threading.Event(), [0]
    freed = FreedMemory(released.set, lambda: used[0])
    monkeypatch.setattr(turn_module, "FreedMemory", lambda: freed)
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
