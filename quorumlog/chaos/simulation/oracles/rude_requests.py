"""Requests that brokers must refuse: late copies of clients' requests, and guessed epochs.

A network with retries may deliver a copy of a request at any later time. Each request here changes
nothing in a correct cluster, whatever happens until it arrives.
"""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

from quorumlog.broker.transactions.core.records import TransactionMetadata
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.chaos.simulation.oracles import exchanges
from quorumlog.chaos.simulation.oracles.exchanges import Exchange
from quorumlog.chaos.simulation.oracles.group_members import GroupMembers
from quorumlog.chaos.simulation.oracles.group_offsets import GroupOffsets
from quorumlog.chaos.simulation.oracles.transactions import Transactions
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

KEPT: Final = 40  # the newest requests of a kind, from which a copy is drawn
AHEAD: Final = 50  # epochs that stay unused for long


class RudeRequest(NamedTuple):
    """A request for the leader of `home`."""

    home: TopicPartition
    api_version: int
    request: Any


class RudeRequests:
    """Draws requests. `homes`: the partition with the records of a group or transactional id."""

    def __init__(
        self, members: GroupMembers, offsets: GroupOffsets, transactions: Transactions
    ) -> None:
        self.homes: Final[dict[str, TopicPartition]] = {}
        self._members: Final = members
        self._offsets: Final = offsets
        self._transactions: Final = transactions
        self._commits: Final[deque[Exchange]] = deque(maxlen=KEPT)
        self._heartbeats: Final[deque[Exchange]] = deque(maxlen=KEPT)

    def saw(self, exchange: Exchange) -> None:
        """Keep a client's request for later copies."""
        if exchange.is_rude:
            return
        if exchange.header.api_key == exchanges.OFFSET_COMMIT:
            self._commits.append(exchange)
        elif exchange.header.api_key == exchanges.CONSUMER_HEARTBEAT:
            self._heartbeats.append(exchange)

    def draw(self, rng: Random) -> RudeRequest | None:
        """Return a request of a random kind, or None if there is none."""
        kinds: list[Callable[[Random], Iterator[RudeRequest]]] = [
            self._late_copies, self._epochs, self._markers,
        ]  # fmt: skip
        rng.shuffle(kinds)
        for kind in kinds:
            if there_are := [*kind(rng)]:
                return rng.choice(there_are)
        return None

    def _late_copies(self, rng: Random) -> Iterator[RudeRequest]:
        """Yield copies of commits and heartbeats whose members have newer epochs, or are gone."""
        del rng
        late = [one for one in self._commits if self._offsets.is_late(one.request)]
        late += [one for one in self._heartbeats if self._members.is_fenced(one.request)]
        for one in late:
            if (home := self.homes.get(one.request.group_id)) is not None:
                yield RudeRequest(home, one.header.api_version, one.request)

    def _epochs(self, rng: Random) -> Iterator[RudeRequest]:
        """Yield requests of producers with an older epoch, or with a guessed one."""
        states = self._transactions.states
        is_open = {
            name: state for name, state in states.items() if state.state is TransactionState.ONGOING
        }
        for name, state in (is_open or states).items():
            home = self.homes[name]
            commits = rng.random() < 0.5
            ahead = _end(name, state, state.producer_epoch + AHEAD, commits=commits)
            yield RudeRequest(home, 5, ahead)
            if state.producer_epoch >= 1:
                old = state.producer_epoch - 1
                yield RudeRequest(home, 5, _end(name, state, old, commits=commits))
                yield RudeRequest(home, 4, _add(name, state, old))
            # The epoch before may send its InitProducerId again, unless a new producer fenced it.
            is_begun = (state.producer_id, state.producer_epoch) in self._transactions.begun
            if (old := state.producer_epoch - (1 if is_begun else 2)) >= 0:
                yield RudeRequest(home, 4, _init(name, state, old))
            if (at := self._transactions.unadded(state)) is not None:
                yield RudeRequest(home, 5, _verify(name, state, at))

    def _markers(self, rng: Random) -> Iterator[RudeRequest]:
        """Yield markers of the decision before, for open transactions."""
        del rng
        states = {state.producer_id: state for state in self._transactions.states.values()}
        for at, places in self._transactions.places.items():
            for producer_id, place in places.items():
                state = states.get(producer_id)
                if state is None or state.state is not TransactionState.ONGOING:
                    continue
                is_bumped = state.client_transaction_version >= 2
                is_open = place.first_offset >= 0 and place.epoch == place.marker_epoch
                if is_open and is_bumped:
                    marker = _marker(at, producer_id, place.epoch, place.coordinator_epoch)
                    yield RudeRequest(at, 2, marker)


def _end(name: str, state: TransactionMetadata, epoch: int, *, commits: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=name,
        producer_id=state.producer_id,
        producer_epoch=epoch,
        committed=commits,
    )


def _add(name: str, state: TransactionMetadata, epoch: int) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=name,
        producer_id=state.producer_id,
        producer_epoch=epoch,
        group_id=exchanges.RUDE,
    )


def _init(name: str, state: TransactionMetadata, epoch: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=state.transaction_timeout_ms,
        producer_id=state.producer_id,
        producer_epoch=epoch,
    )


def _verify(name: str, state: TransactionMetadata, at: TopicPartition) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnTopic(name=at.topic, partitions=[at.partition])
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        verify_only=True,
        topics=[topic],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def _marker(
    at: TopicPartition, producer_id: int, epoch: int, coordinator_epoch: int
) -> WriteTxnMarkersRequest:
    topic = WritableTxnMarkerTopic(name=at.topic, partition_indexes=[at.partition])
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[topic],
        coordinator_epoch=coordinator_epoch,
        transaction_version=2,
    )
    return WriteTxnMarkersRequest(markers=[marker])
