"""A consumer's fetch session with one broker: the partitions and positions that the broker has.

A session begins with a full fetch. Later fetches name only changes, and their responses have only
partitions with news. The broker may forget a session at any time, and a response may be lost: then
the next fetch is full. Sources: KIP-227, KIP-516 (topic ids), Kafka's FetchSessionHandler.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

NO_SESSION: Final = 0  # a session id
FULL_EPOCH: Final = 0  # of a fetch that begins a session
EPOCH_MAX: Final = 2**31 - 1


class Asked(NamedTuple):
    """The position of one partition in a fetch."""

    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    fetched_epoch: int


class SessionFetch(NamedTuple):
    """The next fetch of a session: the partitions that it adds or changes, and those it drops.

    session_id: with FULL_EPOCH, of the session that the fetch replaces. forgotten: with topic ids.
    """

    session_id: int
    epoch: int
    named: list[TopicPartition]
    forgotten: list[tuple[TopicPartition, bytes]]

    @property
    def is_full(self) -> bool:
        """True if the fetch names all partitions; then the response must have all of them."""
        return self.epoch == FULL_EPOCH


class FetchSession:
    """One session with one broker; one fetch at a time.

    Between `next_fetch` and an accepted `handle_answered` the session counts as lost: a fetch
    without a response leaves it so, and the next fetch is full.
    """

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FULL_EPOCH
        self._asked: dict[TopicPartition, Asked] = {}  # in the broker's session, unless it is lost
        self._has_ids = False

    def next_fetch(self, wanted: Mapping[TopicPartition, Asked], *, has_ids: bool) -> SessionFetch:
        """Return the next fetch of these partitions. The caller must send it.

        has_ids: the fetch names topics by id; a session cannot change that.
        """
        epoch, self._epoch = self._epoch, FULL_EPOCH
        if epoch == FULL_EPOCH or has_ids != self._has_ids:
            self._asked, self._has_ids = {**wanted}, has_ids
            return SessionFetch(self._session_id, FULL_EPOCH, [*wanted], [])
        known, named = self._asked, []
        forgotten: list[tuple[TopicPartition, bytes]] = []
        if len(known) != len(wanted) or known.keys() != wanted.keys():
            gone = [name for name in known if name not in wanted]
            forgotten = [(name, known.pop(name).topic_id) for name in gone]
        for name, asked in wanted.items():
            before = known.get(name)
            if before != asked:
                # Without ids, this would make the broker forget the topic of the same name.
                if has_ids and before is not None and before.topic_id != asked.topic_id:
                    forgotten.append((name, before.topic_id))
                known[name] = asked
                named.append(name)
        return SessionFetch(self._session_id, epoch, named, forgotten)

    def handle_answered(
        self,
        fetch: SessionFetch,
        error_code: int,
        session_id: int,
        answered: Collection[TopicPartition],
    ) -> bool:
        """Handle the response to `fetch`; `answered`: its partitions. False: ignore the response.

        A response without an error that is ignored or incomplete ends the session.
        """
        if error_code != ErrorCode.NONE:
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION
            return False
        is_known = all(name in self._asked for name in answered)
        if fetch.is_full:
            self._session_id = session_id
            if session_id != NO_SESSION and is_known and len(answered) == len(self._asked):
                self._epoch = 1
            return True
        if not is_known or session_id not in {fetch.session_id, NO_SESSION}:
            return False
        if session_id == NO_SESSION:  # the broker has closed the session, and this is its last news
            self._session_id = NO_SESSION
        else:
            self._epoch = 1 if fetch.epoch == EPOCH_MAX else fetch.epoch + 1
        return True
