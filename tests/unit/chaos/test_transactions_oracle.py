"""Each rule of transactions in whole nodes, with a history that breaks it."""

from dataclasses import replace
from typing import Any, Final

import pytest

from quorumlog.broker.transactions.core.records import TransactionMetadata, TransactionRecord
from quorumlog.broker.transactions.core.states import TransactionState as State
from quorumlog.chaos.simulation.oracles import exchanges
from quorumlog.chaos.simulation.oracles.exchanges import RUDE, Exchange
from quorumlog.chaos.simulation.oracles.transactions import Transactions
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from quorumlog.wire.codec.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from quorumlog.wire.codec.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from quorumlog.wire.codec.records import Record, encode_batch, read_header
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker

NAME: Final = "payer"
FIRST: Final = TopicPartition("chaos", 0)
OTHER: Final = TopicPartition("chaos", 1)
WEEK_MS: Final = 604_800_000
EMPTY: Final = TransactionMetadata(
    producer_id=7,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    state=State.EMPTY,
    last_update_ms=1_000,
    client_transaction_version=2,
)
ONGOING: Final = replace(EMPTY, state=State.ONGOING, partitions=(FIRST, OTHER), start_ms=1_000)
COMMITS: Final = replace(ONGOING, state=State.PREPARE_COMMIT, producer_epoch=4)
ABORTS: Final = replace(ONGOING, state=State.PREPARE_ABORT, producer_epoch=4)
COMMITTED: Final = replace(COMMITS, state=State.COMPLETE_COMMIT)


class History:
    """Steps of a history; `broken` has the rules that the oracle found broken."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.oracle = Transactions(lambda _: True, self.told.append)
        self._offset = 0

    @property
    def broken(self) -> list[str]:
        return [one.partition(":")[0] for one in self.told]

    def read(self, *states: TransactionMetadata | None, name: str = NAME) -> "History":
        for state in states:
            self.oracle.read(TransactionRecord(transactional_id=name, metadata=state), WEEK_MS)
        return self

    def batch(
        self, at: TopicPartition = FIRST, epoch: int = 3, *, is_transactional: bool = True
    ) -> bytes:
        record = Record(self._offset, 0, None, b"value")
        made = encode_batch(
            [record],
            base_offset=self._offset,
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=0,
            is_transactional=is_transactional,
        )
        self._offset += 1
        self.oracle.appended(at, read_header(made))
        self.oracle.look()
        return made

    def marker(self, at: TopicPartition, *, commits: bool = True, epoch: int = 4) -> "History":
        self.oracle.marked(at, TransactionMarker(7, epoch, 0, commits), self._offset)
        self._offset += 1
        return self

    def sends(self, api_key: int, request: Any, version: int, *, by: str = "p1") -> Exchange:
        exchange = Exchange(1, RequestHeader(api_key, version, 1, by), request)
        self.oracle.asked(exchange)
        return exchange

    def end(self, epoch: int = 3, *, commits: bool = True) -> Exchange:
        request = EndTxnRequest(
            transactional_id=NAME, producer_id=7, producer_epoch=epoch, committed=commits
        )
        return self.sends(exchanges.END_TXN, request, 5)

    def granted(self, exchange: Exchange) -> "History":
        exchange.response = EndTxnResponse()
        self.oracle.ended(exchange)
        return self

    def init(self, epoch: int, *, names: int = -1, by: str = "p1") -> "History":
        request = InitProducerIdRequest(
            transactional_id=NAME, producer_id=7 if names >= 0 else -1, producer_epoch=names
        )
        exchange = self.sends(exchanges.INIT_PRODUCER_ID, request, 4, by=by)
        exchange.response = InitProducerIdResponse(producer_id=7, producer_epoch=epoch)
        self.oracle.initialized(exchange)
        return self

    def fetches(self, stable: int, high_watermark: int, *, records: bytes = b"", **of: Any) -> None:
        part = PartitionData(
            partition_index=0,
            high_watermark=high_watermark,
            last_stable_offset=stable,
            records=records,
            **of,
        )
        topics = [FetchableTopicResponse(topic="chaos", partitions=[part])]
        exchange = Exchange(1, RequestHeader(exchanges.FETCH, 12, 1, "c1"), None)
        exchange.response = FetchResponse(responses=topics)
        self.oracle.fetched(exchange, lambda _: None)


@pytest.fixture
def history() -> History:
    return History()


def test_a_whole_transaction_breaks_no_rule(history: History) -> None:
    history.init(3).read(EMPTY, ONGOING)
    made = history.batch()
    history.fetches(0, 1)
    ending = history.end()
    history.read(COMMITS).granted(ending)
    history.marker(FIRST).marker(OTHER).read(COMMITTED)
    history.oracle.look()
    history.fetches(2, 2, records=made)
    assert history.told == []


@pytest.mark.parametrize(
    ("states", "rule"),
    [
        ((ONGOING, COMMITTED), "transition"),
        ((ONGOING, EMPTY), "transition"),
        ((COMMITS, ABORTS), "transition"),
        ((EMPTY, replace(EMPTY, producer_epoch=2)), "epochs"),
        ((ONGOING, replace(ABORTS, producer_epoch=5)), "epochs"),
        ((replace(ONGOING, producer_epoch=32_767),), "epochs"),
        ((EMPTY, replace(EMPTY, producer_id=8, producer_epoch=0)), "own-id"),
        ((replace(COMMITS, producer_epoch=32_767), replace(COMMITTED, producer_id=0)), "own-id"),
        ((ONGOING, None), "expires"),
        ((EMPTY, None), "expires"),
        ((ONGOING, replace(ONGOING, partitions=(FIRST,))), "partitions-kept"),
        ((ONGOING, replace(COMMITS, partitions=(OTHER,))), "partitions-kept"),
        ((ONGOING, COMMITS), "requested"),
        ((ONGOING, ABORTS), "requested"),
        ((COMMITS, COMMITTED), "completed-added"),
    ],
)
def test_a_log_that_breaks_a_rule_is_found(
    states: tuple[TransactionMetadata | None, ...], rule: str, history: History
) -> None:
    history.read(replace(EMPTY, producer_id=0), name="other").read(*states)
    history.oracle.look()
    assert rule in history.broken


def test_an_unused_id_expires_after_a_week(history: History) -> None:
    history.read(replace(EMPTY, last_update_ms=0), None)
    assert history.told == []


def test_the_coordinator_may_abort_for_a_rival_and_after_the_timeout(history: History) -> None:
    history.read(ONGOING).init(5)
    history.read(ABORTS)
    assert history.told == []
    other = History()
    other.read(ONGOING, replace(ABORTS, last_update_ms=61_000))
    assert other.told == []


def test_an_abort_without_an_epoch_of_its_own_needs_a_request(history: History) -> None:
    history.read(replace(ONGOING, client_transaction_version=1)).init(5)
    history.read(replace(ABORTS, producer_epoch=3, client_transaction_version=1))
    assert history.broken == ["requested"]


def test_markers_have_the_outcome_of_a_committed_decision(history: History) -> None:
    history.marker(FIRST).oracle.look()
    assert history.broken == ["one-outcome"]
    other = History()
    other.end()
    other.read(ONGOING, COMMITS).marker(FIRST, commits=False).oracle.look()
    assert other.broken == ["one-outcome"]


def test_a_batch_is_in_an_added_partition_and_before_the_marker(history: History) -> None:
    history.batch()
    assert history.broken == ["added"]
    other = History()
    other.end()
    other.read(ONGOING)
    other.batch()
    other.read(COMMITS).marker(FIRST).batch()
    assert other.broken == ["late-batch"]


def test_a_plain_batch_in_an_open_transaction_is_misplaced(history: History) -> None:
    history.read(ONGOING)
    history.batch()
    history.batch(is_transactional=False)
    assert history.broken == ["misplaced"]


def test_a_marker_of_the_decision_before_ends_no_transaction(history: History) -> None:
    history.end()
    history.read(ONGOING, COMMITS).marker(FIRST).marker(OTHER).read(COMMITTED)
    history.read(replace(ONGOING, producer_epoch=4))
    history.batch(epoch=4)
    history.marker(FIRST).oracle.look()
    assert history.broken == ["late-marker"]


def test_a_read_stops_at_an_undecided_transaction(history: History) -> None:
    history.read(ONGOING)
    history.batch()
    history.fetches(1, 1)
    assert history.broken == ["stable"]
    history.told.clear()
    history.end()
    history.read(COMMITS).marker(FIRST)
    history.fetches(1, 1)  # on a replica whose high watermark has not reached the marker
    assert history.broken == ["stable"]


def test_a_fetch_response_names_the_aborted_transactions(history: History) -> None:
    history.end(commits=False)
    history.read(ONGOING)
    made = history.batch()
    history.read(ABORTS).marker(FIRST, commits=False)
    named = [AbortedTransaction(producer_id=7, first_offset=0)]
    history.fetches(2, 2, records=made, aborted_transactions=named)
    assert history.told == []
    history.fetches(2, 2, records=made)
    assert history.broken == ["aborted-listed"]


def test_a_producer_receives_the_committed_outcome(history: History) -> None:
    history.read(ONGOING).granted(history.end())
    assert history.broken == ["reported-outcome"]
    other = History()
    other.end(commits=False)
    other.read(ONGOING, ABORTS).granted(other.end())
    assert other.broken == ["reported-outcome"]


def test_two_producers_get_different_epochs(history: History) -> None:
    history.init(3).init(4).init(4)
    assert history.broken == ["one-epoch"]


def test_a_repeated_init_of_one_producer_may_get_its_epoch_again(history: History) -> None:
    history.init(3).init(4, names=3).init(4, names=3)
    assert history.told == []


def test_a_producer_with_an_older_epoch_acts_no_more(history: History) -> None:
    request = AddOffsetsToTxnRequest(transactional_id=NAME, producer_id=7, producer_epoch=3)
    history.init(3).init(4)
    exchange = history.sends(exchanges.ADD_OFFSETS, request, 4)
    exchange.response = AddOffsetsToTxnResponse()
    history.oracle.added(exchange)
    assert history.broken == ["fenced-acts"]
    history.told.clear()
    history.init(6, names=2, by=RUDE)
    history.init(7, names=3)
    assert history.broken == ["fenced-acts"] * 2


def test_a_fenced_producer_is_no_reason_for_an_abort(history: History) -> None:
    history.init(2).init(3).read(ONGOING).init(5, names=2)
    history.told.clear()
    history.read(ABORTS)
    assert history.broken == ["requested"]


@pytest.mark.parametrize("version", [3, 5])
def test_a_coordinator_confirms_only_added_partitions(version: int, history: History) -> None:
    history.read(replace(ONGOING, partitions=(FIRST,)))
    asked = AddPartitionsToTxnTransaction(
        transactional_id=NAME, producer_id=7, producer_epoch=3, verify_only=True
    )
    results = [AddPartitionsToTxnPartitionResult(partition_index=index) for index in (0, 1)]
    topic = AddPartitionsToTxnTopicResult(name="chaos", results_by_partition=results)
    request = AddPartitionsToTxnRequest(transactions=[asked])
    answer = AddPartitionsToTxnResult(transactional_id=NAME, topic_results=[topic])
    response = AddPartitionsToTxnResponse(results_by_transaction=[answer])
    if version == 3:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=7,
            v3_and_below_producer_epoch=3,
        )
        response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
    exchange = Exchange(1, RequestHeader(exchanges.ADD_PARTITIONS, version, 1, RUDE), request)
    exchange.response = response
    history.oracle.confirmed(exchange)
    assert len(history.told) == 1
    assert "chaos-1, which was not added" in history.told[0]


def test_a_client_that_no_longer_bumps_the_epoch_ends_its_transactions_in_it(
    history: History,
) -> None:
    """It has connected to a broker whose finalized features are not known yet (KIP-890)."""
    history.end()
    history.read(ONGOING, COMMITS).marker(FIRST).marker(OTHER).read(COMMITTED)
    plain: dict[str, Any] = {"producer_epoch": 4, "client_transaction_version": 0}
    history.read(replace(ONGOING, **plain))
    history.batch(epoch=4)
    history.end(epoch=4)
    history.read(replace(COMMITS, **plain))
    history.marker(FIRST).oracle.look()
    assert history.broken == []
