"""uvicorn's HTTP protocol with a time limit for the headers of a request, which uvicorn itself does not have."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """Returns a protocol class that closes connections whose headers do not arrive within `seconds`."""

    class TimedProtocol(H11Protocol):
        _headers_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait_for_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_waiting()

        def _wait_for_headers(self) -> None:
            """Starts the time while headers are incomplete, and stops it where they are complete."""
            if self.conn.their_state is not h11.IDLE:
                self._stop_waiting()
            elif self._headers_due is None:
                self._headers_due = self.loop.call_later(seconds, self._close_if_idle)

        def _stop_waiting(self) -> None:
            if self._headers_due is not None:
                self._headers_due.cancel()
                self._headers_due = None

        def _close_if_idle(self) -> None:
            self._headers_due = None
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self.transport.close()

    return TimedProtocol
