"""A raw consumer with incremental fetch sessions (KIP-227), one at each node that leads.

It adds and forgets partitions, changes positions, ends sessions, and at times sends an invented
session, or an epoch out of turn. Its positions never jump: its polls are a log's.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.history.exchanges import INVENTED_SESSION, OUT_OF_TURN
from quorumlog.chaos.rude_clients.connection import Answered, RawConnection
from quorumlog.chaos.rude_clients.raw_client import RawClient, fetched, read_batches
from quorumlog.chaos.rude_clients.read_requests import FETCH_EPOCHS_SINCE, fetch_version
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)

SESSIONS_SINCE: Final = 7
FULL_EPOCH: Final = 0
CLOSING_EPOCH: Final = -1
WAIT_MS: Final = 60
_BYTES: Final = (1 << 20, 1 << 20, 1 << 20, 600)
_SHARE_NEW_SESSION: Final = 0.03
_SHARE_CLOSED: Final = 0.02
_SHARE_REFUSED: Final = 0.08
_SHARE_FORGOTTEN: Final = 0.1
_SHARE_REMEMBERED: Final = 0.4

Asked = tuple[int, int]
"""The position and the leader epoch in the session's request of a partition."""


@dataclass(slots=True)
class _Session:
    """The client's half of a session. It belongs to one connection."""

    connection: RawConnection
    version: int
    isolation_level: int
    session_id: int = 0
    epoch: int = FULL_EPOCH
    asked: dict[int, Asked] = field(default_factory=dict)

    def wanted(self, asked: Mapping[int, Asked]) -> "tuple[dict[int, Asked], list[int]]":
        """Return (the partitions to name in the next request, those to forget)."""
        if self.epoch == FULL_EPOCH:
            return dict(asked), []
        named = {index: one for index, one in asked.items() if self.asked.get(index) != one}
        return named, [index for index in self.asked if index not in asked]


class SessionReader(RawClient):
    """Reads all partitions from their beginning, one round at one node after the other."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._of_log: Final = next(self.numbers.processes)
        self._positions: Final = dict.fromkeys(range(self.partitions), 0)
        self._sessions: Final[dict[int, _Session]] = {}
        self._forgotten: Final[set[int]] = set()

    async def run(self, working: asyncio.Event, gap_s: float) -> None:
        """Fetch every `gap_s` on average, until `working` is cleared."""
        named = [Message(self.key(index), UNKNOWN_OFFSET, -1) for index in self._positions]
        self.history.append(self._of_log, "invoke", "assign", named)
        self.history.append(self._of_log, "ok", "assign", named)
        try:
            while working.is_set():
                await asyncio.sleep(self.rng.expovariate(1 / gap_s))
                nodes = sorted({one.node for one in self.view.leaders.values()})
                is_fine = bool(nodes)
                for node in nodes:
                    is_fine = await self._round(node) and is_fine
                if not is_fine:
                    await self.pause()
        finally:
            await self.view.close()

    async def _round(self, node: int) -> bool:
        """Fetch once from a node; return whether its partitions may stay there."""
        session = await self._session(node)
        if session is None:
            return False
        if self.rng.random() < _SHARE_REFUSED:
            await self._send_refused(session)
        asked = self._asked(node)
        if not asked:
            return True
        named, forgotten = session.wanted(asked)
        session.asked = asked
        max_bytes = self.rng.choice(_BYTES)
        request = self._request(session, named, forgotten, max_bytes)
        self.begin("wire_fetch")
        self.history.append(self._of_log, "invoke", "poll")
        answered = await session.connection.exchange(request, session.version)
        self.end("wire_fetch", self._facts(session, request, answered, max_bytes))
        records = self._advance(session, answered)
        outcome = "fail" if answered.response is None else "ok"
        error = "NO_ANSWER" if answered.response is None else ""
        self.history.append(self._of_log, outcome, "poll", records, error=error)
        return self._continue(node, session, answered)

    async def _session(self, node: int) -> _Session | None:
        """Return the session at a node, or a new one; None: the node does not answer."""
        session = self._sessions.get(node)
        if session is not None and not session.connection.is_closed:
            if self.rng.random() < _SHARE_CLOSED:
                await self._close(session)
            if self.rng.random() < _SHARE_NEW_SESSION:
                session.epoch = FULL_EPOCH  # a full fetch replaces the session
            return session
        connection = await self.view.connection(node)
        if connection is None:
            return None
        version = fetch_version(self, connection, least=SESSIONS_SINCE)
        session = _Session(connection, version, self.rng.randrange(2))
        self._sessions[node] = session
        return session

    def _asked(self, node: int) -> dict[int, Asked]:
        """Return the partitions to read at a node; some are forgotten for a while."""
        for index in self._positions:
            if index in self._forgotten:
                if self.rng.random() < _SHARE_REMEMBERED:
                    self._forgotten.discard(index)
            elif self.rng.random() < _SHARE_FORGOTTEN:
                self._forgotten.add(index)
        return {
            index: (position, self.view.leaders[index].epoch)
            for index, position in self._positions.items()
            if index not in self._forgotten
            and index in self.view.leaders
            and self.view.leaders[index].node == node
        }

    def _request(
        self, session: _Session, named: Mapping[int, Asked], forgotten: list[int], max_bytes: int
    ) -> FetchRequest:
        view = self.view
        partitions = [
            FetchPartition(
                partition=index,
                fetch_offset=position,
                current_leader_epoch=epoch,
                partition_max_bytes=max_bytes,
            )
            for index, (position, epoch) in named.items()
        ]
        topic = FetchTopic(topic=view.topic, topic_id=view.topic_id, partitions=partitions)
        dropped = ForgottenTopic(topic=view.topic, topic_id=view.topic_id, partitions=forgotten)
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=session.isolation_level,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=[topic] if partitions else [],
            forgotten_topics_data=[dropped] if forgotten else [],
        )

    def _facts(
        self, session: _Session, request: FetchRequest, answered: Answered, max_bytes: int
    ) -> list[Message]:
        """Return the facts of all partitions of the session, and of others in the response."""
        response = answered.response
        found = _found(response)
        size = sum(len(one.records or b"") for one in found.values())
        has_epochs = session.version >= FETCH_EPOCHS_SINCE
        return [
            fetched(
                self.key(index),
                answered.exchange,
                session.asked.get(index, (0, -1))[0],
                data=found.get(index),
                top_error=0 if response is None else response.error_code,
                session=(request.session_id, request.session_epoch),
                asked_epoch=session.asked.get(index, (0, -1))[1] if has_epochs else -1,
                was_asked=index in session.asked,
                has_room=size < max_bytes // 4,
            )
            for index in sorted({*session.asked, *found})
        ]

    def _advance(self, session: _Session, answered: Answered) -> list[Message]:
        """Move the positions; return the records as messages of a log."""
        records: list[Message] = []
        for index, data in sorted(_found(answered.response).items()):
            if data.error_code or index not in session.asked:
                continue
            read, spans, corrupt = read_batches(data.records)
            position = self._positions[index]
            if corrupt or not spans:
                continue
            key = self.key(index)
            records += [
                Message(key, one.offset, one.value) for one in read if one.offset >= position
            ]
            self._positions[index] = max(position, spans[-1][1] + 1)
        return records

    def _continue(self, node: int, session: _Session, answered: Answered) -> bool:
        """Note the outcome of a round; return whether no leader has moved."""
        response = answered.response
        if response is None:
            del self._sessions[node]
            return False
        if response.error_code:
            session.epoch, session.session_id = FULL_EPOCH, 0
            return True
        if response.session_id == 0:  # the node has no room for a session
            session.epoch, session.session_id = FULL_EPOCH, 0
        else:
            session.session_id, session.epoch = response.session_id, session.epoch + 1
        return not any(one.error_code for one in _found(response).values())

    async def _send_refused(self, session: _Session) -> None:
        """Send an invented session, or an epoch out of turn; the node must refuse it."""
        is_open = session.session_id != 0 and session.epoch != FULL_EPOCH
        if is_open and self.rng.random() < 0.5:
            session_id, epoch = session.session_id, OUT_OF_TURN
        else:
            session_id, epoch = self.rng.randrange(1, 1 << 31), INVENTED_SESSION
        request = FetchRequest(
            max_wait_ms=0, max_bytes=1 << 20, session_id=session_id, session_epoch=epoch
        )
        self.begin("wire_fetch")
        answered = await session.connection.exchange(request, session.version)
        top_error = 0 if answered.response is None else answered.response.error_code
        fact = fetched(
            self.key(0),
            answered.exchange,
            0,
            top_error=top_error,
            session=(session_id, epoch),
            was_asked=False,
        )
        self.end("wire_fetch", [fact])

    async def _close(self, session: _Session) -> None:
        """End a session by its last fetch; the next request begins another one."""
        if session.session_id == 0:
            return
        request = FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            session_id=session.session_id,
            session_epoch=CLOSING_EPOCH,
        )
        await session.connection.exchange(request, session.version)
        session.session_id, session.epoch = 0, FULL_EPOCH


def _found(response: Any) -> dict[int, Any]:
    """Return the partitions of a response, by index."""
    topics = [] if response is None else response.responses
    return {one.partition_index: one for topic in topics for one in topic.partitions}
