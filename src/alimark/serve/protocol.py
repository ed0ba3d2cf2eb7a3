"""uvicorn's HTTP protocol with limits that uvicorn does not have: the time of headers, the smallness of chunks, and the bytes
that are read before a request is accepted.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_FRAMING = 2048
"""The most bytes of a chunked body that are not content: the parser spends time on each chunk, and a chunk may be one byte."""
_SLICE = 1024
"""Bytes that are parsed before the chunks are looked at."""
HEADER_BYTES, BODY_BYTES = 4096, 65536
"""Bytes that are read from a connection at a time: before the headers of a request are complete, and of its body. A request
that is refused by its headers costs one small read. asyncio would read up to 256 KiB of a body that nobody asked
for."""


class _SmallReads(H11Protocol, asyncio.BufferedProtocol):
    """Reads few bytes at a time until the headers of a request are complete."""

    _buffer = bytearray()

    def get_buffer(self, sizehint: int) -> bytearray:
        size = BODY_BYTES if self.conn.their_state is h11.SEND_BODY else HEADER_BYTES
        if len(self._buffer) != size:
            self._buffer = bytearray(size)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(memoryview(self._buffer)[:nbytes]))


def limited_protocol(seconds: float) -> type[H11Protocol]:
    """Returns a protocol class that closes connections whose headers take more than `seconds`, or whose chunks are tiny."""

    class LimitedProtocol(_SmallReads):
        _headers_due: asyncio.TimerHandle | None = None
        _framing = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_headers()

        def data_received(self, data: bytes) -> None:
            while data and not self.transport.is_closing():
                if self.conn.their_state is h11.SEND_BODY and not self._chunked():
                    super().data_received(data)
                    break
                self._receive_slice(data[:_SLICE])
                data = data[_SLICE:]
            self._wait_for_headers()

        def _receive_slice(self, data: bytes) -> None:
            """Parses a few bytes, and ends the connection where most of a body so far was not content."""
            inside = self.conn.their_state is h11.SEND_BODY
            before = len(self.cycle.body) if inside else 0
            super().data_received(data)
            if self.conn.their_state is not h11.SEND_BODY or not self._chunked():
                self._framing = 0
            elif inside:
                self._framing += len(data) - (len(self.cycle.body) - before)
                if self._framing > MAX_FRAMING:
                    self.send_400_response(
                        "The chunks of the body are too small. Send it with the header Content-Length."
                    )

        def _chunked(self) -> bool:
            return any(name == b"transfer-encoding" for name, _ in self.headers)

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

    return LimitedProtocol
