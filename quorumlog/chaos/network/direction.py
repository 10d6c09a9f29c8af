"""One direction of one forwarded connection: its bytes are forwarded, delayed or lost."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from quorumlog.chaos.network.link_state import LinkState
from quorumlog.chaos.network.splitters import Message, Piece, Splitter

QUEUE_MAX_BYTES: Final = 1024 * 1024
_ANSWERS_MAX_BYTES: Final = 16 * QUEUE_MAX_BYTES
_SLICE_BYTES_MIN: Final = 512
_SLICES_PER_S: Final = 20  # of a slow link: it sends small slices, not bursts


class Direction:
    """A queue between two sockets, with the rules of its link.

    Invariants:

    1. Bytes leave in the order in which they came; the end of the stream leaves last.
    2. The queue holds at most QUEUE_MAX_BYTES and the bytes of one read: then reading pauses.
    3. No bytes leave while the link is cut.
    """

    def __init__(
        self,
        state: LinkState,
        splitter: Splitter,
        *,
        picks: Callable[[Message], bool],
        ended: Callable[[], None],
        watch: Callable[[Piece], None] | None = None,
        shape: Callable[[list[Piece]], list[Piece]] | None = None,
        held: Callable[[], bytes] = bytes,
    ) -> None:
        """Begin a stream.

        `shape` returns the pieces to forward in the place of its input; `held` returns the
        bytes that it still holds at the end. `picks` gets each message next; True: the message and
        the rest of the stream are lost. `ended` is called once, after the last byte has left.
        `watch` gets each piece that is not lost, when it comes.
        """
        self._loop: Final = asyncio.get_running_loop()
        self.state: Final = state
        self._splitter: Final = splitter
        self._picks: Final = picks
        self._ended: Final = ended
        self._watch: Final = watch
        self._shape: Final = shape
        self._held: Final = held
        self._queue: Final[deque[tuple[float, bytes | None]]] = deque()  # (due, bytes); None: end
        self.queued_bytes = 0
        self._last_due_s = self._free_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False  # the rest of the stream is discarded
        self._has_ended = False
        self._is_blocked = False  # the destination's buffer is full
        self._is_reading_paused = False
        self.source: asyncio.Transport | None = None
        self.destination: asyncio.Transport | None = None

    def received(self, data: bytes) -> None:
        """Queue or forward bytes from the source."""
        if self._is_lost:
            return
        pieces = self._splitter.feed(data)
        self.insert(pieces if self._shape is None else self._shape(pieces))

    def insert(self, pieces: list[Piece]) -> None:
        """Queue or forward pieces, behind all earlier pieces."""
        if self._is_lost:
            return
        destination = self.destination
        is_plain = self.state.is_plain and not self._queue and destination is not None
        for piece in pieces:
            if piece.message is not None and self._picks(piece.message):
                self._is_lost = True
                is_plain = False
                break
            if self._watch is not None:
                self._watch(piece)
            if not is_plain:
                self._enqueue(piece)
        if is_plain and destination is not None:
            contents = [piece.content for piece in pieces]
            destination.write(contents[0] if len(contents) == 1 else b"".join(contents))
        else:
            self._resume()

    @property
    def is_overfull(self) -> bool:
        """Whether answers wait that the destination does not read: no source can be paused."""
        destination = self.destination
        buffered = 0 if destination is None else destination.get_write_buffer_size()
        return self.queued_bytes + buffered > _ANSWERS_MAX_BYTES

    def lose(self) -> None:
        """Discard the queue and all later bytes: the destination is gone."""
        self._is_lost = True
        self._queue.clear()
        self.queued_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        self._pass_end()

    def delay(self, seconds: float) -> None:
        """Delay the current message, and all that follow, by `seconds`."""
        self._last_due_s = max(self._last_due_s, self._loop.time() + seconds)

    def end(self) -> None:
        """Queue the end of the stream behind the waiting bytes."""
        if self._has_ended:
            return
        if not self._is_lost and (rest := self._held() + self._splitter.rest()):
            self._enqueue(Piece(rest))
        self._queue.append((self._last_due_s, None))
        self._resume()

    def block(self, is_blocked: bool) -> None:
        """Pause or resume, as the destination's buffer is full or not."""
        self._is_blocked = is_blocked
        self._limit()

    def rules_changed(self) -> None:
        """Apply the current rules: send bytes that no rule holds back any more."""
        if not (self.state.is_cut or self.state.bytes_per_s):
            now_s = self._loop.time()
            self._last_due_s = self._free_s = now_s
            for place, (_, content) in enumerate(self._queue):
                self._queue[place] = (now_s, content)
        self._resume()

    def close(self) -> None:
        """Close the source: both directions have ended."""
        if self.source is not None:
            self.source.close()

    def _enqueue(self, piece: Piece) -> None:
        state, now_s = self.state, self._loop.time()
        content = bytes(piece.content)
        due_s = max(self._last_due_s, now_s + state.delay_s())
        rate = state.bytes_per_s
        size = len(content) if rate is None else max(_SLICE_BYTES_MIN, rate // _SLICES_PER_S)
        for start in range(0, len(content), size):
            part = content[start : start + size]
            if rate is not None:
                self._free_s = due_s = max(due_s, self._free_s) + len(part) / rate
            self._queue.append((due_s, part))
        self.queued_bytes += len(content)
        self._last_due_s = due_s

    def _resume(self) -> None:
        """Send the bytes that are due, and set a timer for the next ones."""
        queue, destination = self._queue, self.destination
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while queue and not self.state.is_cut and destination is not None and not self._is_blocked:
            due_s, content = queue[0]
            if due_s > self._loop.time():
                self._timer = self._loop.call_at(due_s, self._resume)
                break
            queue.popleft()
            if content is None:
                if not destination.is_closing():
                    with suppress(OSError):  # its peer has just gone
                        destination.write_eof()
                self._pass_end()
            else:
                self.queued_bytes -= len(content)
                destination.write(content)
        self._limit()

    def _pass_end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._ended()

    def _limit(self) -> None:
        """Pause or resume reading from the source."""
        is_full = self.queued_bytes >= QUEUE_MAX_BYTES
        should_pause = self._is_blocked or is_full
        if self.source is None or should_pause == self._is_reading_paused:
            return
        if self.source.is_closing():
            return
        self._is_reading_paused = should_pause
        if should_pause:
            self.source.pause_reading()
        else:
            self.source.resume_reading()
