"""Faults of the page: functions that plant one in the process of the server before it serves.

They change code of this project only, as a wrong change of it would.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saliscope import limits
from saliscope.images.decoder import pool
from saliscope.page.serving import arguments, guard
from saliscope.page.serving.door import bodies, hosts, json_bodies, uploads
from saliscope.session.jobs import places, runs, turns, visitors

kept: list[Any] = []
"""What a fault never forgets."""


def limit(**values: float) -> Callable[[], None]:
    """Return a function that changes limits."""

    def plant() -> None:
        for name, value in values.items():
            setattr(limits, name, value)

    return plant


def replace(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Return a function that replaces a name of a module or class."""
    return lambda: setattr(owner, name, value)


def serve_files() -> None:
    """Serve files outside the folders of the page."""
    _build().OPTIONS["allowed_paths"].append("/etc")


def _build() -> Any:
    import saliscope.page.serving.before_torch  # noqa: F401  must come before torch
    from saliscope.page import build  # as above

    return build


def fetch_links() -> None:
    """Fetch every link before it is refused."""
    check = json_bodies._check_file

    def other(value: dict[str, Any]) -> None:
        for text in map(str, value.values()):
            if text.startswith("http"):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(text, timeout=1)
        check(value)

    setattr(json_bodies, "_check_file", other)  # noqa: B010 mypy refuses a plain assignment


def accept_long_bodies() -> None:
    """Accept bodies of twice the size."""
    create = bodies.Body.__init__

    def other(self: bodies.Body, receive: Any, limit: int, **options: Any) -> None:
        create(self, receive, 2 * limit, **options)

    setattr(bodies.Body, "__init__", other)  # noqa: B010 as above


def files_without_policy() -> None:
    """Send files of visitors without the headers of the page."""
    answer = guard.Guard._answer

    async def other(self: guard.Guard, scope: Any, receive: Any, send: Any) -> None:
        is_file = scope["path"].startswith("/gradio_api/file=") and os.path.exists(scope["path"].partition("=")[2])
        await (self.app(scope, receive, send) if is_file else answer(self, scope, receive, send))

    setattr(guard.Guard, "_answer", other)  # noqa: B010 as above


def replace_unknown_names() -> None:
    """Answer with the default instead of an error for an unknown name."""
    _build()
    from saliscope.page.serving import endpoints  # as above

    setattr(endpoints, "_refuse_notes", lambda settings: None)  # noqa: B010 as above


def find_files_by_name() -> None:
    """Serve a file of another visitor to someone who knows its name only."""
    admit = guard.Guard._admit

    async def other(self: guard.Guard, scope: Any, path: str) -> Any:
        start, _, file = path.partition("/gradio_api/file=")
        if not start and file and not os.path.exists(file):
            found = next(Path(uploads.folder()).glob(f"*/{os.path.basename(file)[:-1]}*"), None)
            if found:
                scope = {**scope, "path": f"/gradio_api/file={found}", "raw_path": f"/gradio_api/file={found}".encode()}
        return await admit(self, scope, path)

    setattr(guard.Guard, "_admit", other)  # noqa: B010 as above


def accept_web_sockets() -> None:
    """Answer requests for web sockets."""
    check = guard._check_headers

    def other(headers: Any) -> None:
        check([pair for pair in headers if pair[0].lower() != b"upgrade"])

    setattr(guard, "_check_headers", other)  # noqa: B010 as above


def plant_in_decoders(name: str) -> Callable[[], None]:
    """Return a function that plants a fault in the decoders of the page."""
    return lambda: setattr(pool, "Pool", functools.partial(pool.Pool, module=(*RUN, name, pool.WORKER)))


RUN = ("benchmarks.public.faults.run",)


def keep_uploads_of_others() -> None:
    """Only delete uploads that this process has received."""
    sweep, known = uploads.entries, set[str]()
    own = uploads.Uploads.own

    def other(self: uploads.Uploads, paths: Any, address: str) -> None:
        known.update(map(os.path.dirname, map(str, paths)))
        own(self, paths, address)

    setattr(uploads.Uploads, "own", other)  # noqa: B010 as above
    setattr(uploads, "entries", lambda place: [each for each in sweep(place) if each.path in known])  # noqa: B010


def ignore_quota() -> None:
    """Accept uploads until the disk is full."""

    async def other(self: uploads.Uploads, size: int) -> None:
        return

    setattr(uploads.Uploads, "make_room", other)  # noqa: B010 as above


def first_come() -> None:
    """Let jobs wait in the order in which they come, also those to which no one listens."""
    setattr(turns.Turns, "_order", lambda self, turn: 0)  # noqa: B010 as above
    setattr(places.Places, "_order", lambda self: lambda job: list(self._waiting).index(job))  # noqa: B010
    setattr(runs, "end_unheard", lambda: 0)  # noqa: B010
    setattr(turns.Turns, "report", lambda self, turn, fraction: None)  # noqa: B010


def last_come() -> None:
    """Answer the latest request of a program first, each after half a second."""
    _build()
    from saliscope.page.serving import endpoints  # as above

    explain, changed, waiting, busy = endpoints.explain, threading.Condition(), list[object](), list[object]()

    @functools.wraps(explain)
    def other(*values: Any, **options: Any) -> dict[str, Any]:
        own = object()
        with changed:
            waiting.append(own)
            changed.wait_for(lambda: not busy and waiting[-1] is own)
            busy.append(waiting.pop())
        try:
            time.sleep(0.5)
            return explain(*values, **options)
        finally:
            with changed:
                busy.clear()
                changed.notify_all()

    setattr(endpoints, "explain", other)  # noqa: B010


def keep_bodies() -> None:
    """Keep all bytes of bodies."""
    receive = bodies.Body.receive

    async def other(self: bodies.Body) -> Any:
        message = await receive(self)
        kept.append(message.get("body", b""))
        return message

    setattr(bodies.Body, "receive", other)  # noqa: B010


def keep_visitors() -> None:
    """Keep a megabyte of every session."""
    arrive = visitors.arrive

    def other(session: str, address: str) -> visitors.Visitor:
        kept.append(os.urandom(limits.MB))
        return arrive(session, address)

    setattr(visitors, "arrive", other)  # noqa: B010


def show_address() -> None:
    """Show the address of the page as HTML."""
    insert = "document.body.insertAdjacentHTML('beforeend', decodeURIComponent(asked.replaceAll('+', ' ')))"
    script = f"const asked = location.search, show = () => document.body ? {insert} : setTimeout(show, 20);"
    _build().OPTIONS["head"] = f"<script>{{{script} show()}}</script>"


def _in_answers(change: Callable[[dict[str, dict[str, Any]], str, dict[str, Any]], dict[str, Any]]) -> None:
    """Change the answers of a program, from the second one about an image on."""
    _build()
    from saliscope.page.serving import endpoints  # as above

    explain, known = endpoints.explain, dict[str, dict[str, Any]]()

    @functools.wraps(explain)
    def other(image: Any, *values: Any, **options: Any) -> dict[str, Any]:
        answer = explain(image, *values, **options)
        path = str(image.path if hasattr(image, "path") else image["path"])
        if path in known:
            return change(known, path, answer)
        known[path] = answer
        return answer

    setattr(endpoints, "explain", other)  # noqa: B010


def swap_answers() -> None:
    """Give a visitor the answer of another one."""
    _in_answers(lambda known, path, answer: next((each for name, each in known.items() if name != path), answer))


def lose_answers() -> None:
    """Lose one answer of six."""
    rng = random.Random(0)

    def change(known: Any, path: str, answer: dict[str, Any]) -> dict[str, Any]:
        if rng.random() < 1 / 6:
            time.sleep(3600)
        return answer

    _in_answers(change)


def _after_questions(change: Callable[[], object]) -> Callable[[], None]:
    """Return a function that lets something happen after every map of a visitor."""
    return lambda: runs.observers.append(lambda run: run.kind == "map" and change())


def _leak_thread() -> None:
    threading.Thread(target=time.sleep, args=[3600], daemon=True).start()


FAULTS: dict[str, Callable[[], None]] = {
    "files outside the folders": serve_files,
    "links are fetched": fetch_links,
    "bodies twice as long": accept_long_bodies,
    "JSON values not counted": limit(JSON_ITEMS=10**9),
    "JSON delimiters not counted": limit(JSON_DELIMITERS=10**9),
    "JSON depth not counted": limit(JSON_DEPTH=10**9),
    "headers not checked": replace(guard, "_check_headers", lambda headers: None),
    "no content security policy": lambda: setattr(guard, "HEADERS", guard.HEADERS[1:]),
    "files without security headers": files_without_policy,
    "unknown endpoints": replace(arguments, "is_unknown", lambda path, message: False),
    "unknown names": replace_unknown_names,
    "files of other visitors": find_files_by_name,
    "web sockets": accept_web_sockets,
    "decoders of the page without limits": plant_in_decoders("decoders without limits"),
    "decoders of the page without seccomp": plant_in_decoders("decoders without seccomp"),
    "foreign hosts": replace(hosts.Hosts, "answers", lambda self, host, scope: True),
    "foreign websites": replace(hosts.Hosts, "is_foreign", lambda self, origin, headers: False),
    "uploads never deleted": replace(uploads, "remove", lambda entry: False),
    "uploads of an earlier process never deleted": keep_uploads_of_others,
    "uploads without a quota": ignore_quota,
    "uploads of any number of files": limit(UPLOAD_PARTS=10**6),
    "heads without a time limit": limit(HEAD_SECONDS=10**6),
    "any number of connections": limit(CONNECTIONS=10**6),
    "agents not refused": replace(guard, "AGENTS", re.compile("(?!)")),
    "bodies without a time limit": limit(BODY_PAUSE=10**6, BODY_SECONDS=10**6),
    "bodies kept": keep_bodies,
    "first come, first served": first_come,
    "few jobs at once": limit(JOBS=40),
    "sessions kept": keep_visitors,
    "the address as HTML": show_address,
    "answers of others": swap_answers,
    "answers lost": lose_answers,
    "last come, first served": last_come,
    "memory leak": _after_questions(lambda: kept.append(os.urandom(100_000))),
    "file leak": _after_questions(lambda: kept.append(open(os.devnull))),  # noqa: SIM115
    "thread leak": _after_questions(_leak_thread),
}
