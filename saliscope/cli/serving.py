"""Start the page for `saliscope serve`."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from functools import partial
from typing import Any

from saliscope import limits
from saliscope.cli import progress
from saliscope.errors import Refused
from saliscope.images.decoder import pool, sandbox
from saliscope.zoo import settings

CONNECTIONS = 65_536
"""Open files of the process. Connections that send nothing are not limited by the page."""


def serve(
    model: str,
    overrides: dict[str, Any],
    host: str | None,
    port: int | None,
    run: str | None,
    units: str | None = None,
    device: str = "auto",
    mcp: bool = False,
    monitoring: bool = False,
    log_format: str = progress.TEXT,
) -> None:
    """Serve the page until it is interrupted, or after SIGTERM until running answers have ended.

    Errors   Refused if the device or an optional package is not available, or if the model, the run or the index of
             units cannot be opened
    """
    if not limits.SHARED_GPU:  # other processes of the platform run the networks there
        sandbox.hide_memory()
    import saliscope.page.serving.before_torch  # noqa: F401  must come before torch

    if device != "auto":
        from saliscope.zoo import devices  # torch takes seconds to start

        devices.choose(device)
    named = bool(overrides) or model != settings.AUTO
    if limits.SHARED_GPU or named:  # on a shared GPU, models must be registered before the server runs
        from saliscope.compute import model_cache  # torch takes seconds to start

        model_cache.use_device(device)
        model_cache.start(model, overrides)
        model_cache.ready.wait()
        if named and (error := model_cache.failure()):
            raise Refused(error)  # before the page is built
    from saliscope.page.serving.door import uploads  # `saliscope.page` sets environment variables for Gradio

    uploads.use_own_folder()  # before Gradio is imported, which reads the folder
    allow_many_connections()
    from saliscope.page import build  # gradio takes seconds to start

    if run is not None:
        from saliscope.page.batch import finished_runs  # torch takes seconds to start

        finished_runs.use_run(run)
    if units is not None:
        use_units(units)
    agents = None
    if mcp:
        from saliscope.page.agents.server import Agents  # needs the extra `mcp`

        agents = Agents(host)
    monitor = None
    if monitoring:
        from saliscope.page.operations.metrics import Monitoring  # needs the extra `monitoring`

        monitor = Monitoring()
    if log_format == progress.JSON:
        from saliscope.page.operations import log  # needs uvicorn, which is in the extra `app`

        log.start()
    demo = build.build()
    build.serve(
        demo, model=model, own=overrides, device=device, host=host, port=port, agents=agents, monitoring=monitor
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pool.stop()
    os._exit(0)  # other threads may still compute


def use_units(folder: str) -> None:
    """Show the names and images of an index on the page, for the network that it was made with.

    Errors   Refused for a folder without a finished index
    """
    from saliscope.compute import units  # torch takes seconds to start
    from saliscope.runs.units import open_index  # as above

    open_index(folder)
    units.use(partial(open_index, folder))


def allow_many_connections() -> None:
    """Raise the limit of open files, each of which may be a connection, as far as this process may."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = CONNECTIONS if most == resource.RLIM_INFINITY else min(most, CONNECTIONS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def check_address(host: str | None, port: int | None) -> None:
    """Check that the server can listen at an address.

    Errors   Refused if the port is taken or not allowed, or if the host is not an address of this machine
    """
    try:
        addresses = socket.getaddrinfo(host or "127.0.0.1", port or 0, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refused(f"Port {port} is already in use. Choose another --port, or omit it.") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise Refused(f"Port {port} is not allowed for this user. Choose a --port above 1023.") from None
        raise Refused(
            f"{host!r} is not an address of this machine. Omit --host, or use 0.0.0.0 to accept connections from other "
            "machines."
        ) from None
