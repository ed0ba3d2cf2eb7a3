"""The log of the service: lines of JSON on stderr, without texts, secrets and floods."""

import json
import logging
import sys
import time
import traceback

_MOST_KINDS = 1000
"""Kinds of log records that are counted."""


class JsonLines(logging.Formatter):
    """Formats log records as lines of JSON. Exceptions appear by type and place, because messages may contain a text."""

    _standard = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message"}

    def format(self, record: logging.LogRecord) -> str:
        content = {"at": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        content |= {name: value for name, value in vars(record).items() if name not in self._standard}
        if record.exc_info and (error := record.exc_info[1]):
            frames = traceback.extract_tb(error.__traceback__)
            places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
            content |= {"error": type(error).__name__, "at_lines": places}
        return json.dumps(content, default=str)


class LimitRepeats(logging.Filter):
    """Drops log records that repeat too often, so that clients without a token cannot fill the disk.

    Records of requests with a token are never dropped; their number has a limit already. After a pause the next record of the
    same kind says in the field `suppressed` how many were dropped. `most` of a kind pass in each period of `seconds`.
    """

    def __init__(self, most: int = 20, seconds: float = 10.0) -> None:
        super().__init__()
        self.most, self.seconds = most, seconds
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "token", ""):
            return True
        kind, now = (record.name, str(record.msg)), time.monotonic()
        start, count = self._kinds.get(kind, (now, 0))
        if now - start >= self.seconds:
            if count > self.most:
                record.suppressed = count - self.most
            start, count = now, 0
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (start, count + 1)
        return count < self.most


def set_up_log() -> None:
    """Sends the log of the service to stderr as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(LimitRepeats())
    for name, level in (("alimark.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
