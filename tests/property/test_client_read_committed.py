"""What read_committed shows in any fetches of any log is what a dumb filter of the log shows.

The filter decides each record by the marker that ends its transaction; the consumer sees one fetch
at a time, which may begin anywhere, and the broker's list of aborted transactions for it.
"""

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from quorumlog.client.core.positions import Positions
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.fetch import AbortedTransaction, PartitionData
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.sizes import examples

T = TopicPartition("t", 0)
PRODUCERS = (1, 2, 3)
DATA, PLAIN, COMMIT, ABORT, COMPACTED = "data", "plain", "commit", "abort", "compacted"


@dataclass(frozen=True)
class Step:
    """A producer appends a batch (also one that compaction removes later), or a marker."""

    producer: int
    kind: str
    count: int = 1


@dataclass(frozen=True)
class Stored:
    """Offsets [first, last]; `data` is empty if compaction has removed the batch."""

    first: int
    last: int
    data: bytes


@dataclass(frozen=True)
class Aborted:
    producer: int
    first: int
    last: int  # the marker's offset


def written(steps: list[Step]) -> tuple[list[Stored], list[Aborted], list[int]]:
    """The log, its index of aborted transactions, and the offsets that read_committed must show."""
    log: list[Stored] = []
    aborted: list[Aborted] = []
    open_since: dict[int, list[tuple[int, int, bool]]] = {}  # (first, last, is there) by producer
    shown: list[int] = []
    end = 0
    for step in steps:
        is_marker = step.kind in {COMMIT, ABORT}
        batches = open_since.get(step.producer, [])
        if is_marker and not batches:
            continue
        first, last = end, end if is_marker else end + step.count - 1
        key = {COMMIT: b"\0\0\0\1", ABORT: b"\0\0\0\0"}.get(step.kind)
        records = [Record(offset, 0, key, b"v") for offset in range(first, last + 1)]
        data = encode_batch(
            records,
            base_offset=first,
            producer_id=step.producer,
            producer_epoch=0,
            is_transactional=step.kind != PLAIN,
            is_control=is_marker,
        )
        if step.kind == PLAIN:
            shown += range(first, last + 1)
        elif not is_marker:
            is_there = step.kind == DATA
            open_since.setdefault(step.producer, []).append((first, last, is_there))
            data = data if is_there else b""
        else:
            del open_since[step.producer]
            if step.kind == ABORT:
                aborted.append(Aborted(step.producer, batches[0][0], last))
            else:
                shown += [n for a, b, is_there in batches if is_there for n in range(a, b + 1)]
        log.append(Stored(first, last, data))
        end = last + 1
    undecided = min([batches[0][0] for batches in open_since.values()], default=end)
    log = [one for one in log if one.first < undecided]  # the last stable offset bounds fetches
    return log, aborted, sorted(offset for offset in shown if offset < undecided)


def fetch(log: list[Stored], aborted: list[Aborted], offset: int, batches: int) -> PartitionData:
    """As a broker answers: whole batches from the one that holds `offset` on."""
    found = [one for one in log if one.last >= offset and one.data][:batches]
    upper = found[-1].last if found else -1
    listed = [one for one in aborted if one.last >= offset and one.first <= upper]
    return PartitionData(
        records=b"".join(one.data for one in found),
        aborted_transactions=[
            AbortedTransaction(producer_id=one.producer, first_offset=one.first) for one in listed
        ],
    )


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(PRODUCERS),
        st.sampled_from([DATA, DATA, PLAIN, COMMIT, ABORT, COMPACTED]),
        st.integers(1, 3),
    ),
    max_size=24,
)
AT_THE_MARKER = [Step(1, DATA), Step(1, ABORT), Step(1, DATA), Step(1, COMMIT)]


@given(steps=STEPS, start=st.integers(0, 40), sizes=st.lists(st.integers(1, 4), min_size=1))
@example(steps=AT_THE_MARKER, start=1, sizes=[3])
@example(steps=AT_THE_MARKER, start=0, sizes=[1, 3])
@examples(600)
def test_read_committed_shows_what_a_dumb_filter_shows(
    steps: list[Step], start: int, sizes: list[int]
) -> None:
    log, aborted, shown = written(steps)
    end = log[-1].last + 1 if log else 0
    start = min(start, end)
    settings = ConsumerSettings(bootstrap_servers="x:1", isolation_level="read_committed")
    positions = Positions(settings)
    positions.assign([T])
    positions.seek(T, start)
    position = positions.of(T)
    read: list[int] = []
    for turn in range(len(log)):
        answer = fetch(log, aborted, position.fetch_offset, sizes[turn % len(sizes)])
        positions.handle_fetched(0.0, position, position.fetch_offset, answer, 0.5)
        while records := positions.take(2):
            read += [record.offset for record in records[T]]
    assert read == [offset for offset in shown if offset >= start]
    assert positions.take_error() is None
