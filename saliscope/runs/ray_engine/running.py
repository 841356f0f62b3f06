"""The process that starts the run: it holds the lock, and writes the rows if the workers cannot write to the folder.

Ray is only used in that other process. It can therefore be restarted if the cluster has shrunk, and Ray's output stays
in its own logs.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import explainers
import saliscope
from saliscope import install, resources
from saliscope.errors import Refused
from saliscope.runs.collecting import Collector, Detail, Report, Summary, complete
from saliscope.runs.decoding import Decode
from saliscope.runs.ray_engine.driver import LOST, drive
from saliscope.runs.ray_engine.stages import PATIENCE, Task, Workers
from saliscope.runs.run import Job

ATTEMPTS = 3
"""Tasks without any result, one after the other, after which the run ends."""
AGAIN = "Run the same command again."


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
            for result in _receive(task):
                collector.add(result)
            vain = vain + 1 if collector.new == before else 0

    return complete(job, report, detail, work)


def _receive(task: Task) -> Iterator[dict[str, Any]]:
    """Yield what the process sends, until it is done or gives up because machines were lost."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    pickled = _pickle(task)
    process = context.Process(target=drive, args=(there, pickled), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            message = here.recv()
            if message is None or message == LOST:
                return
            if isinstance(message, Exception):
                raise message
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
    from ray import cloudpickle  # pickle cannot serialize local functions of a network

    modules = _user_modules()
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
    folders |= {Path(str(package.__file__)).resolve().parent for package in (saliscope, explainers)}

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
