"""A consumer's fetch session beside a broker that forgets: it has the positions of every fetch.

The broker here is a model of KIP-227, written for this test: it applies what a fetch names, loses
responses, evicts and closes sessions. Planted bugs of the client's half must be found.
"""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from quorumlog.client.core.fetch_session import EPOCH_MAX, Asked, FetchSession, SessionFetch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.sizes import tries

PARTITIONS = [TopicPartition(topic, index) for topic in "ab" for index in range(3)]
Key = tuple[str, bytes, int]
Wanted = dict[TopicPartition, Asked]


class Broker:
    """Sessions by id: the expected epoch, whether topics are named by id, and the positions."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.ids = rng, 0
        self.sessions: dict[int, tuple[int, bool, dict[Key, Asked]]] = {}
        self.seen: Counter[str] = Counter()

    def fetch(
        self, fetch: SessionFetch, wanted: Wanted, *, has_ids: bool
    ) -> tuple[int, int, list[TopicPartition]]:
        """Return the error code, session id and partitions of a response."""

        def key(name: TopicPartition, topic_id: bytes) -> Key:
            return ("", topic_id, name.partition) if has_ids else (name.topic, b"", name.partition)

        named = {key(name, wanted[name].topic_id): wanted[name] for name in fetch.named}
        if fetch.epoch == 0:
            self.check(named, wanted, key)
            return 0, self.begin(fetch, named, has_ids=has_ids), fetch.named
        code = self.refusal(fetch, has_ids=has_ids)
        if code != ErrorCode.NONE:
            return code, 0, []
        epoch, _, positions = self.sessions[fetch.session_id]
        positions.update(named)  # first what is named, then what is forgotten, as in Kafka
        for name, topic_id in fetch.forgotten:
            positions.pop(key(name, topic_id), None)
        self.check(positions, wanted, key)
        self.seen["incremental"] += 1
        self.seen["named"] += len(named)
        self.seen["positions"] += len(wanted)
        self.sessions[fetch.session_id] = 1 if epoch == EPOCH_MAX else epoch + 1, has_ids, positions
        news = [name for name in wanted if self.rng.random() < 0.3]
        if self.rng.random() < 0.1:
            del self.sessions[fetch.session_id]
            return 0, 0, news
        return 0, fetch.session_id, news

    def begin(self, fetch: SessionFetch, named: dict[Key, Asked], *, has_ids: bool) -> int:
        """Return the id of a new session, or 0."""
        self.sessions.pop(fetch.session_id, None)
        if self.rng.random() < 0.2:  # no room
            return 0
        self.ids += 1
        self.sessions[self.ids] = 1, has_ids, named
        self.seen["full"] += 1
        return self.ids

    def refusal(self, fetch: SessionFetch, *, has_ids: bool) -> ErrorCode:
        epoch, had_ids, _ = self.sessions.get(fetch.session_id, (0, False, {}))
        if fetch.session_id not in self.sessions:
            self.seen["forgotten"] += 1
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if had_ids != has_ids:
            self.seen["other word"] += 1
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if epoch != fetch.epoch:
            self.seen["epoch"] += 1
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return ErrorCode.NONE

    @staticmethod
    def check(positions: Mapping[Key, Asked], wanted: Wanted, key: object) -> None:
        assert callable(key)
        assert positions == {key(name, asked.topic_id): asked for name, asked in wanted.items()}


def changed(rng: Random, wanted: Wanted) -> Wanted:
    """Move positions, add and drop partitions, and create topics again."""
    ids = {name.topic: asked.topic_id for name, asked in wanted.items()}
    for topic in "ab":
        if topic not in ids or rng.random() < 0.05:
            ids[topic] = topic.encode() + rng.randbytes(15)
    result = {}
    for name in PARTITIONS:
        asked = wanted.get(name, Asked(b"", 0, 1, -1))
        if rng.random() < 0.2:
            asked = asked._replace(fetch_offset=rng.randrange(100), leader_epoch=rng.randrange(3))
        if (name in wanted) == (rng.random() < 0.85):
            result[name] = asked._replace(topic_id=ids[name.topic])
    return result


def walk(kind: type[FetchSession], seed: int, steps: int = 60) -> Counter[str]:
    rng = Random(seed)
    broker, session = Broker(rng), kind()
    wanted, has_ids = changed(rng, {}), rng.random() < 0.7
    for _ in range(steps):
        wanted = changed(rng, wanted)
        if rng.random() < 0.03:
            has_ids = not has_ids
        fetch = session.next_fetch(wanted, has_ids=has_ids)
        assert not (fetch.is_full and fetch.forgotten)
        if rng.random() < 0.1:
            continue  # the request is lost
        code, session_id, news = broker.fetch(fetch, wanted, has_ids=has_ids)
        if rng.random() < 0.1:
            continue  # the response is lost
        is_usable = session.handle_answered(fetch, code, session_id, news)
        assert is_usable == (code == ErrorCode.NONE)
        if rng.random() < 0.05:
            broker.sessions.clear()  # it is started again
    return broker.seen


def walk_often(kind: type[FetchSession], seeds: int = 150) -> Counter[str]:
    return sum((walk(kind, seed) for seed in range(seeds)), Counter())


def test_a_broker_has_the_positions_of_every_fetch_and_hears_of_changes_only() -> None:
    seen = walk_often(FetchSession, tries(150))
    assert all(seen[word] for word in ("full", "forgotten", "incremental"))
    assert (seen["epoch"], seen["other word"]) == (0, 0)
    assert seen["named"] < seen["positions"] / 2


class KeepsItsSession(FetchSession):
    """It takes a session for alive whose last fetch had no response."""

    def next_fetch(self, wanted: Mapping[TopicPartition, Asked], *, has_ids: bool) -> SessionFetch:
        fetch = super().next_fetch(wanted, has_ids=has_ids)
        self._epoch = fetch.epoch + 1
        return fetch


class ForgetsNothing(FetchSession):
    def next_fetch(self, wanted: Mapping[TopicPartition, Asked], *, has_ids: bool) -> SessionFetch:
        return super().next_fetch(wanted, has_ids=has_ids)._replace(forgotten=[])


class ForgetsByName(FetchSession):
    """It drops a topic that is created again, also where topics have names only."""

    def next_fetch(self, wanted: Mapping[TopicPartition, Asked], *, has_ids: bool) -> SessionFetch:
        before = {**self._asked}
        fetch = super().next_fetch(wanted, has_ids=has_ids)
        replaced = [
            (name, before[name].topic_id)
            for name in fetch.named
            if not fetch.is_full and name in before
        ]
        return fetch._replace(forgotten=[*fetch.forgotten, *replaced])


class IgnoresOtherWord(FetchSession):
    """It keeps the session when topics are named otherwise."""

    def next_fetch(self, wanted: Mapping[TopicPartition, Asked], *, has_ids: bool) -> SessionFetch:
        self._has_ids = has_ids
        return super().next_fetch(wanted, has_ids=has_ids)


@pytest.mark.planted
@pytest.mark.parametrize("mutant", [ForgetsNothing, ForgetsByName])
def test_a_position_too_many_or_too_few_is_found(mutant: type[FetchSession]) -> None:
    with pytest.raises(AssertionError):
        walk_often(mutant)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("mutant", "word"), [(KeepsItsSession, "epoch"), (IgnoresOtherWord, "other word")]
)
def test_a_needless_error_is_counted(mutant: type[FetchSession], word: str) -> None:
    assert walk_often(mutant)[word] > 0


def test_epochs_begin_again_after_the_highest_and_strangers_end_a_session() -> None:
    session, at = FetchSession(), PARTITIONS[0]
    wanted = {at: Asked(b"i" * 16, 5, 1, -1)}
    full = session.next_fetch(wanted, has_ids=True)
    assert session.handle_answered(full, 0, 7, [at])
    session._epoch = EPOCH_MAX
    last = session.next_fetch(wanted, has_ids=True)
    assert session.handle_answered(last, 0, 7, [])
    first = session.next_fetch(wanted, has_ids=True)
    assert first == SessionFetch(7, 1, [], [])
    assert not session.handle_answered(first, 0, 7, [PARTITIONS[1]])  # of another's session
    again = session.next_fetch(wanted, has_ids=True)
    assert again == SessionFetch(7, 0, [at], [])
    assert session.handle_answered(again, 0, 8, [])  # incomplete: what it has is used
    assert session.next_fetch(wanted, has_ids=True) == SessionFetch(8, 0, [at], [])
