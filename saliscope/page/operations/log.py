"""One JSON object per line on stderr for every request (`saliscope serve --log-format json`).

A line has the kind of the request, method, model, layer, bytes of the image, seconds and outcome. It never has the
content or the name of an image, nor other text of a visitor. The platform stores and rotates the lines.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

from uvicorn import config

from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run


def write(event: str, **values: Any) -> None:
    """Write one line."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(json.dumps({"time": now, "event": event, **values}) + "\n")
    sys.stderr.flush()


def fields(run: Run) -> dict[str, Any]:
    """Return what a line says about an ended run."""
    return {**run.about, "kind": run.kind, "seconds": round(run.took, 3), "outcome": run.outcome}


def start() -> None:
    """Write a line for every request from now on, and other messages as JSON too."""
    runs.observers.append(lambda run: write("request", **fields(run)))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # The server would give its loggers handlers that write plain text and tracebacks.
    config.LOGGING_CONFIG["loggers"] = {}


class _Lines(logging.Formatter):
    """Format messages of libraries as JSON: where an error was raised, but not its text, which may contain a path."""

    def format(self, record: logging.LogRecord) -> str:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line: dict[str, Any] = {"time": now, "event": "message", "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": str(record.msg).strip()}  # without its arguments
        if record.exc_info and record.exc_info[1] is not None:
            places = traceback.extract_tb(record.exc_info[1].__traceback__)
            line["error"] = type(record.exc_info[1]).__name__
            line["raised"] = [f"{place.name}:{place.lineno}" for place in places[-3:]]
        return json.dumps(line)
