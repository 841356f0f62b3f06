"""Health and metrics: `/healthz`, and `/metrics` in the text format of Prometheus (`saliscope serve --monitoring`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from saliscope.compute import model_cache
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.places import places
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.errors import Refused
from saliscope.images.decoder import pool, sandbox
from saliscope.page.serving.door import uploads
from saliscope.page.shared import messages

HEALTH, METRICS = "/healthz", "/metrics"
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 240)


class Monitoring:
    """The two routes, and the counters of requests.

    `waiting` returns the number of requests that Gradio has not started yet. `stopping` returns whether the server
    refuses new requests.

    Errors   Refused if the package `prometheus_client` is not installed
    """

    def __init__(self, waiting: Callable[[], int] = lambda: 0, stopping: Callable[[], bool] = lambda: False) -> None:
        try:
            self._package = importlib.import_module("prometheus_client")
        except ImportError:
            raise Refused(messages.NO_METRICS) from None
        self.waiting, self.stopping = waiting, stopping
        self._registry = registry = self._package.CollectorRegistry()
        self._package.ProcessCollector(registry=registry)  # memory, open files and processor time
        labels = ["kind", "method", "outcome"]
        self._requests = self._package.Counter(
            "saliscope_requests", "Requests that have ended.", labels, registry=registry
        )
        self._seconds = self._package.Histogram(
            "saliscope_request_seconds", "Seconds of a request.", ["method"], registry=registry, buckets=BUCKETS
        )
        registry.register(self)

    @property
    def routes(self) -> list[BaseRoute]:
        """The two routes."""
        return [Route(HEALTH, self._health), Route(METRICS, self._metrics)]

    def observe(self, run: Run) -> None:
        """Count a request that has ended."""
        method = str(run.about.get("method") or "none")
        self._requests.labels(run.kind, method, run.outcome).inc()
        self._seconds.labels(method).observe(run.took)

    def collect(self) -> Iterator[Any]:
        """Yield what is measured when the metrics are read."""
        core = importlib.import_module("prometheus_client.core")
        for name, text, value in (
            ("saliscope_queue_length", "Requests that wait to be computed.", self._queue()),
            ("saliscope_running", "Requests that have started.", runs.running()),
            ("saliscope_model_loaded", "1 if the first model is loaded.", int(bool(model_cache.first_model()))),
            ("saliscope_uploads_bytes", "Bytes of uploads and results on the disk.", uploads.size()),
            ("saliscope_disk_full", "1 if the disk has no room for an upload.", int(uploads.is_full())),
        ):
            yield core.GaugeMetricFamily(name, text, value=value)
        text = "Decoder processes that crashed or took too long."
        yield core.CounterMetricFamily("saliscope_decoder_restarts", text, value=pool.restarts())

    def _queue(self) -> int:
        return self.waiting() + places.waiting() + turns.waiting()

    def _health(self, _: Request) -> Response:
        model = model_cache.first_model()
        status = "stopping" if self.stopping() else "ok" if model else "failed" if model_cache.failure() else "loading"
        disk = "full" if uploads.is_full() else "ok"
        status = "disk full" if status == "ok" and disk == "full" else status
        answer: dict[str, Any] = {"status": status, "model": model or None, "queue": self._queue(), "disk": disk}
        answer |= {"sandbox": pool.mechanisms(), "hidden": sandbox.is_hidden()}
        return JSONResponse(answer, 200 if status == "ok" else 503)

    def _metrics(self, _: Request) -> Response:
        return Response(self._package.generate_latest(self._registry), media_type=self._package.CONTENT_TYPE_LATEST)
