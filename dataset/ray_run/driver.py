"""The process that is connected to the cluster: it sends the results of the stages to the one that began it."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataset.errors import Refused
from dataset.items import Item, is_local
from dataset.ray_run.stages import results
from dataset.ray_run.task import READING, Task, Workers, portable

SHARE = 0.8
"""Of the CPUs that explain; the others decode."""
ROOMS = ("dataset", "explainers", "models", "ui")
"""Sent to the workers, which need the packages of the extra `ray` alone."""
LOST = "lost"
"""Sent last, where machines were lost and the others could not take their work."""


def drive(pipe: Any, pickled: bytes) -> None:
    """Send every result, then None, or LOST; an error in their place. Begins in a process of its own."""
    _silence()
    try:
        task: Task = pickle.loads(pickled)
        with connected(task.address), _watch(pipe, task.patience) as send:
            fitted = replace(task, workers=fit(task.workers))
            _check_files(fitted.batches[0][2])
            for result in results(fitted):
                send(result)
            send(None)
    except (BrokenPipeError, KeyboardInterrupt):  # who asked has ended
        return
    except Exception as error:
        pipe.send(_told(error))


def _silence() -> None:
    """Ray's processes write to the terminal on their own; it keeps the same words in its logs."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _told(error: Exception) -> Exception:
    import ray

    if isinstance(error, ray.exceptions.RayError):
        reason = str(error).strip().splitlines()[-1]
        return Refused(f"The Ray cluster failed: {reason}. What is done is kept: run the same command again.")
    return portable(error)


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A cluster for as long as the block.

    Errors   Refused where nothing answers at the address
    """
    _check_answers(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    root = Path(__file__).resolve().parents[2]
    own: dict[str, Any] = {"address": address}
    if address is None:
        own = {"address": "local", "num_cpus": 1 + (os.cpu_count() or 1), "include_dashboard": False}
    modules = {"py_modules": [str(root / room) for room in ROOMS], "excludes": ["__pycache__"]}
    try:
        ray.init(**own, runtime_env=modules, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise Refused(f"No Ray cluster answers at {address or 'this machine'}: {reason}.") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str | None) -> None:
    """Ray itself asks an address for minutes, and then ends the process.

    Errors   Refused where nothing answers
    """
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise Refused(f"No Ray cluster answers at {address}: {error}. Give host:port of its head, or auto.") from None


@contextmanager
def _watch(pipe: Any, patience: float) -> Iterator[Any]:
    """A function that sends; should nothing be sent for long after a machine was lost, LOST is, and the process ends.

    Ray begins the actors of a lost machine again where there is room, and waits for ever where there is none.
    """
    machines, lock = _machines(), threading.Lock()
    last, over = [time.monotonic()], threading.Event()

    def send(message: Any) -> None:
        with lock:
            pipe.send(message)
            last[0] = time.monotonic()

    def look() -> None:
        while not over.wait(1):
            if time.monotonic() - last[0] > patience and machines - _machines():
                with lock:
                    pipe.send(LOST)
                    os._exit(0)  # Ray Data has no way out of a wait

    threading.Thread(target=look, daemon=True).start()
    try:
        yield send
    finally:
        over.set()


def _machines() -> set[str]:
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def fit(workers: Workers) -> Workers:
    """As many workers as the cluster has room for beside the tasks that read.

    Errors   Refused where it has none for a single one
    """
    import ray

    there = ray.cluster_resources()
    cpus, gpus, own = there.get("CPU", 0), there.get("GPU", 0), workers.cpus or 1
    if cpus < own + READING or gpus < workers.gpus:
        raise Refused(
            f"The cluster is too small (CPUs: {cpus:g}, GPUs: {gpus:g}): a worker takes {own:g} and {workers.gpus:g}, "
            f"and reading {READING:g} CPUs. Add machines, or let workers take less."
        )
    room = int((cpus - READING) / own)
    room = min(room, int(gpus / workers.gpus)) if workers.gpus else max(1, min(room, int(cpus * SHARE / own)))
    return Workers(min(workers.most or room, room), own, workers.gpus)


def _check_files(items: list[Item]) -> None:
    """Errors   Refused where a machine of the cluster has not the pictures that this one has"""
    here = [item.url for item in items if is_local(item.url) and os.path.exists(item.url)]
    if not here:
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def exists(path: str) -> bool:
        return os.path.exists(path)

    has = ray.remote(num_cpus=0)(exists)
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
            if not ray.get(has.options(scheduling_strategy=there).remote(here[0])):
                raise Refused(
                    f"The machine {node['NodeManagerAddress']} of the cluster has no {here[0]}. Put the pictures on a "
                    "disk that all machines share, or give the address of a store, such as s3://…"
                )
