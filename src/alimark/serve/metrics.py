"""What Prometheus is told. Counts and times, never who asked for what."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry an app, so that several may live in one process."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self.requests = Counter("alimark_requests", "Requests answered.", ["route", "method", "status"], registry=own)
        self.seconds = Histogram(
            "alimark_request_seconds", "Time from a request's head to the end of its answer.", ["route"], registry=own,
            buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )  # fmt: skip
        self.refused = Counter("alimark_refused", "Requests refused by a limit.", ["limit"], registry=own)
        self.detections = Counter("alimark_detections", "Texts looked at.", ["verdict"], registry=own)
        self.written = Counter("alimark_texts_written", "Marked texts written.", ["kind"], registry=own)
        self.batch_texts = Histogram(
            "alimark_batch_texts", "Texts of a detection batch.", registry=own, buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        self.batch_units = Counter("alimark_embedded_units", "Units embedded for detections.", registry=own)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A number that is looked up when somebody asks."""
        Gauge(name, about, registry=self._registry).set_function(value)

    def seen_batch(self, texts: int, units: int) -> None:
        self.batch_texts.observe(texts)
        self.batch_units.inc(units)

    def text(self) -> bytes:
        return generate_latest(self._registry)
