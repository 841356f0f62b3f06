"""The process that starts the run, and the one that it starts, which is connected to the cluster.

The first one holds the lock, and writes the rows if the workers cannot write to the folder. Ray is only used in the
other one, which sends the results. It can therefore be restarted if the cluster has shrunk, and Ray's output stays in
its own logs. Ray copies the running code to the machines of a cluster, which do not need Saliscope.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import pickle
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import explainers
import saliscope
from saliscope import install, resources
from saliscope.errors import Refused
from saliscope.runs.decoding import Decode
from saliscope.runs.items import Item, is_local, reason_of
from saliscope.runs.ray_engine.stages import LISTING, PATIENCE, READING, Task, Workers, picklable, results
from saliscope.runs.run import Collector, Detail, Job, Report, Summary, complete
from saliscope.runs.stores import SETTINGS, WORK, LocalStore

with contextlib.suppress(ImportError):  # ray is an extra
    import ray
    from ray.util import scheduling_strategies

ATTEMPTS = 3
"""Tasks without any result, one after the other, after which the run ends."""
AGAIN = "Run the same command again."
SHARE = 0.8
"""Fraction of the CPUs that explain; the others decode."""
PACKAGES = tuple(str(Path(str(package.__file__)).parent) for package in (saliscope, explainers))


def run(
    job: Job,
    *,
    decode: Decode,
    address: str | None = None,
    workers: Workers | None = None,
    report: Report | None = None,
    detail: Detail | None = None,
    patience: float = PATIENCE,
) -> Summary:
    """Explain all unfinished images of a job on a Ray cluster, and write its manifest.

    `address` is passed to `ray.init`; if it is None, Ray is started on this machine and stopped afterwards. `report`
    and `detail` are called after each batch, as in `saliscope.runs.run.run`. An exception in them stops the run;
    finished batches are kept. `patience` is the number of seconds without a result after which the work of a lost
    machine is given to others.

    Errors   Refused if there is no cluster, if it is too small or cannot read the images, if the disk is full, and if
             the source has changed; those of `explainers`
    """
    if importlib.util.find_spec("ray") is None:
        raise Refused(f"The engine ray needs the package ray, which is not installed. {install.hint('ray')}.")
    actors = workers or Workers()
    if actors.cpus is None:
        actors = replace(actors, cpus=1 if actors.resolve(0).gpus else torch.get_num_threads())

    def work(collector: Collector) -> None:
        out = str(job.shards.folder if not job.shards.store.local else Path(job.shards.folder).absolute())
        vain = 0
        while partitions := collector.start():
            if vain == ATTEMPTS:
                raise Refused(f"The Ray cluster computed nothing {ATTEMPTS} times. Finished batches are kept. {AGAIN}")
            finished, before = job.shards.finished, collector.new
            task = Task(job.model, job.settings, partitions, finished, decode, address, actors, patience, out)
            for result in receive(task):
                collector.add(result)
            vain = vain + 1 if collector.new == before else 0

    return complete(job, report, detail, work)


def receive(task: Task) -> Iterator[dict[str, Any]]:
    """Yield what the process sends, until it is done or gives up because machines were lost."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    pickled = _pickle(task)
    process = context.Process(target=drive, args=(there, pickled), daemon=True)
    process.start()
    there.close()
    try:
        while (message := here.recv()) is not None:
            yield message
    except EOFError:
        process.join()
        raise Refused(
            f"The process connected to Ray ended (exit code {process.exitcode}). Finished batches are kept. {AGAIN}"
        ) from None
    finally:
        here.close()
        _end(process)


def _pickle(task: Task) -> bytes:
    """Return the pickled task, including the classes of the user's own modules, which workers do not have."""
    modules, cloudpickle = _user_modules(), ray.cloudpickle  # pickle cannot serialize local functions of a network
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(task))
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _user_modules() -> list[ModuleType]:
    """Return the imported modules that workers cannot import by name.

    Those are neither installed packages nor part of this project, or networks of the project, loaded by their paths.
    """
    paths = sysconfig.get_paths()
    folders = {Path(paths[kind]).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {Path(package).resolve() for package in PACKAGES}

    def is_installed(file: Path) -> bool:
        if not file.is_absolute():  # modules that torch makes, such as torch.ops
            return True
        file = file.resolve()  # as the folders: a clone or an environment may be behind a link
        if file.parent == resources.networks():
            return False
        return not folders.isdisjoint(file.parents) or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)

    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name != "__main__"}
    return [sys.modules[name] for name, file in files.items() if file and not is_installed(Path(file))]


def _end(process: Any) -> None:
    """Let the process end by itself first, so that Ray stops what it started on this machine."""
    process.join(5)
    if process.is_alive():
        process.terminate()
        process.join(15)
    if process.is_alive():
        process.kill()
        process.join()


# The process that is connected to the cluster


def drive(pipe: Any, pickled: bytes) -> None:
    """Send every result, and None at the end. This is the main function of a process."""
    _silence()
    try:
        task: Task = pickle.loads(pickled)
        with connect(task.address), _watch(pipe, task.patience) as send:
            fitted = replace(task, workers=fit(task.workers), out=_shared(task.out))
            _check_files(next(task.partitions[0][1](), []))
            for result in results(fitted):
                send(result)
            send(None)
    except (BrokenPipeError, KeyboardInterrupt):  # the process that started this one has ended
        return
    except Exception as error:
        pipe.send({"error": _to_sendable(error)})


def _silence() -> None:
    """Redirect the output of Ray's processes, which is also in Ray's logs."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _to_sendable(error: Exception) -> Exception:
    if isinstance(error, ray.exceptions.RayError):
        reason = str(error).strip().splitlines()[-1]
        return Refused(f"The Ray cluster failed: {reason}. Finished batches are kept. Run the same command again.")
    return picklable(error)


@contextlib.contextmanager
def connect(address: str | None) -> Iterator[None]:
    """Connect to a cluster for the duration of the block.

    Errors   Refused if the address does not respond
    """
    _check_answers(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = {"address": address}
    if address is None:
        own = {"address": "local", "num_cpus": 1 + (os.cpu_count() or 1), "include_dashboard": False}
    try:
        modules = {"py_modules": [*PACKAGES], "excludes": ["__pycache__"]}
        ray.init(**own, runtime_env=modules, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = address or "this machine"
        raise Refused(f"Cannot connect to a Ray cluster at {where}: {reason_of(error)}.") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str | None) -> None:
    """Check an address in seconds; Ray itself retries for minutes and then ends the process.

    Errors   Refused if it does not respond
    """
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise Refused(
            f"Cannot connect to a Ray cluster at {address}: {error}. Use host:port of its head node, or auto."
        ) from None


@contextlib.contextmanager
def _watch(pipe: Any, patience: float) -> Iterator[Any]:
    """Yield a function that sends. If a machine is lost and nothing is sent for `patience` seconds, send None and exit.

    Ray restarts the actors of a lost machine on other machines; if there are not enough resources, it waits forever.
    """
    machines, lock = _machines(), threading.Lock()
    last, over = [time.monotonic()], threading.Event()

    def send(message: Any) -> None:
        with lock:
            pipe.send(message)
            last[0] = time.monotonic()

    def check() -> None:
        while not over.wait(1):
            if time.monotonic() - last[0] > patience and _is_one_lost(machines):
                with lock:
                    pipe.send(None)
                    os._exit(0)  # a wait of Ray Data cannot be interrupted

    threading.Thread(target=check, daemon=True).start()
    try:
        yield send
    finally:
        over.set()


def _is_one_lost(machines: set[str]) -> bool:
    try:
        return bool(machines - _machines())
    except Exception:  # the head does not respond
        return True


def _machines() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def fit(workers: Workers) -> Workers:
    """Return as many workers as the cluster has resources for, in addition to the tasks that read.

    Errors   Refused if there are not enough resources for one worker
    """
    resources = ray.cluster_resources()
    cpus, gpus, own = resources.get("CPU", 0), resources.get("GPU", 0), workers.cpus or 1
    workers = workers.resolve(gpus)
    reading = READING + 2 * LISTING
    if cpus < own + reading or gpus < workers.gpus:
        raise Refused(
            f"The cluster is too small (CPUs: {cpus:g}, GPUs: {gpus:g}): a worker needs {own:g} CPUs and "
            f"{workers.gpus:g} GPUs, reading needs {reading:g} CPUs. Add machines, or use smaller workers."
        )
    limit = int((cpus - reading) / own)
    limit = min(limit, int(gpus / workers.gpus)) if workers.gpus else max(1, min(limit, int(cpus * SHARE / own)))
    most = min(workers.most or limit, limit)
    return replace(workers, most=most, least=min(workers.least, most), cpus=own)


def _shared(out: str | None) -> str | None:
    """Return the folder of a run if every machine of the cluster can write to it, or None: rows are then sent back."""
    if out is None or not is_local(out):
        return out
    expected = LocalStore(out).read(SETTINGS)

    def has(out: str) -> bool:
        return LocalStore(out).read(SETTINGS) == expected and os.access(os.path.join(out, WORK), os.W_OK)

    return out if all(found for _, found in _on_every_machine(has, out)) else None


def _on_every_machine(function: Callable[[str], bool], argument: str) -> Iterator[tuple[str, bool]]:
    """Yield the address of each machine of the cluster, and the result of a function on it."""
    remote = ray.remote(num_cpus=0)(function)
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            there = scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
            yield node["NodeManagerAddress"], ray.get(remote.options(scheduling_strategy=there).remote(argument))


def _check_files(items: list[Item]) -> None:
    """Check that every machine of the cluster can read the images that this machine can read.

    Errors   Refused
    """
    here = [item.url for item in items if is_local(item.url) and os.path.exists(item.url)]
    if not here:
        return
    for machine, found in _on_every_machine(os.path.exists, here[0]):
        if not found:
            raise Refused(
                f"Machine {machine} of the cluster cannot read {here[0]}. Put the images on a disk that all machines "
                "share, or use the address of a store, such as s3://…"
            )
