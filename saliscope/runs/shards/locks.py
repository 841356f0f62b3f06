"""One writer per run: a lock of the operating system for local folders, a lease for stores.

A lease is a file that its owner rewrites every few seconds. Another process waits and compares: if the file does not
change, the owner is gone. Only the waiting process's own timer counts, so clocks that differ do not matter. A new owner
creates the file with the next number, which the store allows only once; the former owner sees the larger number before
its next shard, and stops.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import threading
import time
import uuid
import warnings
from typing import Any

from saliscope.errors import Refused
from saliscope.runs.stores import LOCK, WORK, LocalStore, RemoteStore, Store, refuse_disk_errors

RENEW = 5.0
"""Seconds between two writes of a lease."""
WAIT = 4 * RENEW
"""Seconds without a write after which the owner of a lease is gone."""
LEASE = f"{WORK}/lease"


def _refusal(folder: object) -> Refused:
    return Refused(
        f"Another process is writing the run in {str(folder)!r}. Wait until it ends, or choose another folder."
    )


class FileLock:
    """A lock on a file of a local folder, which ends with the process."""

    def __init__(self, store: LocalStore) -> None:
        """Lock the run.

        Errors   Refused if another process writes it
        """
        self._file: Any = None
        with refuse_disk_errors(store.folder):
            store.fs.makedirs(store.path(WORK), exist_ok=True)
        try:
            import fcntl  # not on Windows
        except ImportError:
            return
        self._file = open(store.path(f"{WORK}/{LOCK}"), "wb")  # noqa: SIM115  (open until the run ends)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _refusal(store.folder) from None
            # The file system does not support locks.

    def check(self) -> None:
        """Do nothing: the lock cannot be lost."""

    def close(self) -> None:
        """Unlock the run."""
        if self._file is not None:
            self._file.close()


class Lease:
    """The lease of a run in a store, renewed by a thread."""

    def __init__(self, store: RemoteStore) -> None:
        """Take the lease.

        Errors   Refused if another process writes the run, or the store cannot be written
        """
        self.store = store
        self.record: dict[str, Any] = {"owner": uuid.uuid4().hex, "renewed": 0, "process": []}
        with contextlib.suppress(OSError):
            self.record["process"] = _identify(os.getpid())
        self._end = threading.Event()
        number = self._wait_for_owner() + 1
        self.name = f"{LEASE}/{number:06d}.json"
        if not store.create(self.name, self._content()):
            raise _refusal(store.folder)
        if not store.is_exclusive or store.create(self.name, self._content()):
            # Without conditional writes, several processes may have written the file. The last one has the lease.
            time.sleep(RENEW)
        self.check()
        store.delete(f"{LEASE}/{name}" for name in store.sizes(LEASE) if f"{LEASE}/{name}" < self.name)
        self._thread = threading.Thread(target=self._renew, name="saliscope-lease", daemon=True)
        self._thread.start()

    def _content(self) -> bytes:
        return json.dumps(self.record).encode()

    def _newest(self) -> tuple[int, bytes]:
        """Return the number and the content of the newest lease; 0 if there is none."""
        number = max((int(name[:-5]) for name in self.store.sizes(LEASE) if name.endswith(".json")), default=0)
        return number, self.store.read(f"{LEASE}/{number:06d}.json") or b""

    def _wait_for_owner(self) -> int:
        """Return the number of the newest lease after its owner has ended.

        Errors   Refused if the owner is alive
        """
        number, content = self._newest()
        alive = _is_alive(content, self.record["process"]) if number else False
        if alive is None:
            warnings.warn(
                f"{self.store.folder} has the lease of another process. It is watched for {WAIT:g} seconds; if it does "
                "not change, this process continues the run.",
                stacklevel=2,
            )
            latest, end = (number, content), time.monotonic() + WAIT
            while latest == (number, content) and time.monotonic() < end:
                time.sleep(min(1.0, WAIT / 4))
                latest = self._newest()
            alive = latest not in ((number, content), (0, b""))  # without a lease, the owner has just ended
        if alive:
            raise _refusal(self.store.folder)
        return number

    def _renew(self) -> None:
        while not self._end.wait(RENEW):
            with contextlib.suppress(Refused):  # the store may be unavailable for a moment
                if not self._is_mine():
                    return
                self.record["renewed"] += 1
                self.store.write(self.name, self._content())

    def _is_mine(self) -> bool:
        number, content = self._newest()
        owner = json.loads(content or b"{}").get("owner")
        return f"{LEASE}/{number:06d}.json" == self.name and bool(owner == self.record["owner"])

    def check(self) -> None:
        """Check that no other process has taken over the run. Called before a shard and before the manifest.

        Errors   Refused
        """
        if not self._is_mine():
            self._end.set()
            raise Refused(
                f"Another process has taken over the run in {str(self.store.folder)!r}, because this one did not "
                f"respond for {WAIT:g} seconds. Finished batches are kept. Wait until the other one ends."
            )

    def close(self) -> None:
        """End the lease, so that another process can continue at once."""
        if self._end.is_set():
            return
        self._end.set()
        self._thread.join()  # it may be writing the file
        with contextlib.suppress(Refused):
            if self._is_mine():
                self.store.delete([self.name])


def _identify(pid: int) -> list[str]:
    """Return what identifies a process: machine, its start, its space of processes, and the number and start of it.

    Errors   OSError if it has ended, and on other systems than Linux
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    started = "" if fields[0] in "ZX" else fields[19]
    return [platform.node(), boot, os.readlink("/proc/self/ns/pid"), str(pid), started]


def _is_alive(content: bytes, own: list[str]) -> bool | None:
    """Return whether the owner of a lease runs, or None if it is not known because it is on another machine."""
    try:
        owner = json.loads(content)["process"]
        return None if not own or owner[:3] != own[:3] else bool(owner == _identify(int(owner[3])))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def take_lock(store: Store) -> FileLock | Lease:
    """Return the lock of a folder or the lease of a store, until it is released.

    Errors   Refused if another process writes there, or the store cannot be written
    """
    return FileLock(store) if isinstance(store, LocalStore) else Lease(store)
