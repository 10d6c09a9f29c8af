"""Deserialization in any portions: each record once, in order, and each illegal record an error."""

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import DeserializationError
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.messages.fetch import PartitionData
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.client.fake_cluster import T

Log = list[tuple[int, bytes]]  # the offsets and values of the records


@st.composite
def logs(draw: st.DrawFn) -> list[Log]:
    """Draw batches: with gaps, as compaction leaves them, and illegal values."""
    batches: list[Log] = []
    offset = draw(st.integers(0, 3))
    for size in draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)):
        batch: Log = []
        for _ in range(size):
            is_legal = draw(st.integers(0, 3)) > 0
            batch.append((offset, b"%d" % offset if is_legal else b"illegal"))
            offset += draw(st.integers(1, 2))
        batches.append(batch)
    return batches


def fetch(positions: Positions, batches: list[Log]) -> None:
    """Answer the next fetch with all batches that end at its offset or later."""
    [position] = positions.by_partition.values()
    left = [batch for batch in batches if batch[-1][0] >= position.fetch_offset]
    if not left:
        return
    records = b"".join(
        encode_batch([Record(at, 0, None, value) for at, value in batch], base_offset=batch[0][0])
        for batch in left
    )
    positions.handle_fetched(0, position, position.fetch_offset, PartitionData(records=records), 0)


@given(batches=logs(), portions=st.lists(st.integers(1, 9), min_size=1), skips=st.booleans())
def test_every_record_is_returned_or_reported_in_order(
    batches: list[Log], portions: list[int], skips: bool
) -> None:
    settings = ConsumerSettings(bootstrap_servers="h:1", value_deserializer=int)
    positions = Positions(settings)
    positions.assign([T])
    positions.seek(T, 0)
    every = [one for batch in batches for one in batch]
    found: list[tuple[int, object]] = []
    for turn in range(8 * len(every)):
        fetch(positions, batches)
        error = positions.take_undecoded()
        if error is None:
            polled = positions.take(portions[turn % len(portions)]).get(T, [])
            assert len(polled) <= portions[turn % len(portions)]
            found += [(record.offset, record.value) for record in polled]
            continue
        assert isinstance(error, DeserializationError)
        assert positions.of(T).offset <= error.offset
        if skips:
            found.append((error.offset, error.data))
            positions.seek(T, error.offset + 1)
    legal = [(at, int(value) if value != b"illegal" else value) for at, value in every]
    first = next((index for index, (_, value) in enumerate(legal) if value == b"illegal"), None)
    assert found == (legal if skips else legal[:first])
