"""Prometheus metrics: counts and times only, nothing about clients or texts."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one app, in a registry of their own, so that several apps can run in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        count, times = partial(Counter, registry=self._registry), partial(Histogram, registry=self._registry)
        self.requests = count("alimark_requests", "Answered requests.", ["route", "method", "status"])
        self.seconds = times(
            "alimark_request_seconds", "Seconds from the start of a request to the end of its response.", ["route"],
            buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )  # fmt: skip
        self.refused = count("alimark_refused", "Requests that a limit rejected.", ["limit"])
        self.detections = count("alimark_detections", "Texts checked for a watermark.", ["verdict"])
        self.written = count("alimark_texts_written", "Watermarked texts written.", ["kind"])
        self.first_sentence = times(
            "alimark_first_sentence_seconds", "Seconds from a request to the first sentence of a text.",
            buckets=(0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120),
        )  # fmt: skip
        self.ended = count("alimark_texts_ended", "Written texts by why they ended.", ["reason"])
        self.too_short = count(
            "alimark_texts_too_short", "Written texts with too few sentences for their mark to be found."
        )
        self.sampled = count("alimark_sampled_tokens", "Tokens sampled, also for candidates that were not chosen.")
        self.unmarked = count("alimark_passed_on", "Requests that were passed on and answered unmarked.")
        self.not_found = count("alimark_texts_not_found", "Written texts whose mark the service itself does not find.")
        self.words = count("alimark_words", "Words of all answers.", ["tenant"])
        self.words_marked = count("alimark_words_marked", "Those of them that stand in marked sentences.", ["tenant"])

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Adds a gauge whose value is read whenever the metrics are requested."""
        Gauge(name, about, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Returns all metrics in the Prometheus text format."""
        return generate_latest(self._registry)
