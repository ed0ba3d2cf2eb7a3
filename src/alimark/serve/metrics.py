"""Prometheus metrics: counts and times only, nothing about clients or texts."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one app, in a registry of their own, so that several apps can run in one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "alimark_requests", "Answered requests.", ["route", "method", "status"], registry=registry
        )
        self.seconds = Histogram(
            "alimark_request_seconds",
            "Seconds from the start of a request to the end of its response.", ["route"], registry=registry,
            buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )  # fmt: skip
        self.refused = Counter("alimark_refused", "Requests that a limit rejected.", ["limit"], registry=registry)
        self.detections = Counter(
            "alimark_detections", "Texts checked for a watermark.", ["verdict"], registry=registry
        )
        self.written = Counter("alimark_texts_written", "Watermarked texts written.", ["kind"], registry=registry)
        self.first_sentence = Histogram(
            "alimark_first_sentence_seconds", "Seconds from a request to the first sentence of a text.", registry=registry,
            buckets=(0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120),
        )  # fmt: skip
        self.ended = Counter("alimark_texts_ended", "Written texts by why they ended.", ["reason"], registry=registry)
        self.too_short = Counter(
            "alimark_texts_too_short",
            "Written texts with too few sentences for their mark to be found.",
            registry=registry,
        )
        self.sampled = Counter(
            "alimark_sampled_tokens", "Tokens sampled, also for candidates that were not chosen.", registry=registry
        )
        self.unmarked = Counter(
            "alimark_passed_on", "Requests that were passed on and answered unmarked.", registry=registry
        )

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Adds a gauge whose value is read whenever the metrics are requested."""
        Gauge(name, about, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Returns all metrics in the Prometheus text format."""
        return generate_latest(self._registry)
