"""Run a function in several processes of a gloo group, each on one thread."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing


def in_processes(function: Callable[..., Any], folder: Path, *args: Any, count: int = 2) -> list[Any]:
    """Return what `function(rank, *args)` returns in each process; the first error of a process is raised."""
    # Processes are forked from a server without threads. It imports what all of them need: DistributedDataParallel
    # imports torch._dynamo.
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", function.__module__])
    started = []
    for rank in range(count):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(theirs, rank, count, str(folder / "store"), function, args))
        process.start()
        theirs.close()
        started.append((process, ours))
    results = []
    for process, ours in started:
        results.append(pickle.loads(ours.recv_bytes()) if ours.poll(60) else (False, "no answer within 60 s"))
        process.join(10)
        if process.is_alive():
            process.kill()
    for done, result in results:
        assert done, result
    return [result for _, result in results]


def _run(
    answer: Connection, rank: int, count: int, store: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        # The plain format, since multiprocessing would share tensors of a process that ends.
        answer.send_bytes(pickle.dumps((True, function(rank, *args))))
        distributed.destroy_process_group()
    except BaseException:
        answer.send_bytes(pickle.dumps((False, traceback.format_exc())))
    os._exit(0)  # threads of the group may not end
