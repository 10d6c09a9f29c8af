"""The last batches of a log in memory: bounded, and equal to what the file says."""

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.partitions.core import tail
from quorumlog.broker.partitions.core.tail import Tail
from tests.support.sizes import examples


def test_it_is_bounded_and_forgets_what_all_have() -> None:
    recent = Tail()
    for offset in range(5):
        recent.append(offset, offset + 1, bytes(tail.TAIL_BYTES_MAX // 2))
    assert recent._size == tail.TAIL_BYTES_MAX
    recent.forget_below(4)
    assert recent._size == tail.TAIL_BYTES_MAX // 2
    recent.append(9, 10, b"x")  # not the continuation: the log was cut between
    assert recent._size == 1


def test_a_read_that_does_not_start_at_a_batch_goes_to_the_file() -> None:
    recent = Tail()
    recent.append(10, 13, b"abc")
    assert recent.read(9, max_bytes=9, end_offset=13, at_least_one=True) is None
    assert recent.read(11, max_bytes=9, end_offset=13, at_least_one=True) is None
    read = recent.read(10, max_bytes=1, end_offset=13, at_least_one=True)
    assert read == ([b"abc"], 3, 13)
    assert recent.read(10, max_bytes=1, end_offset=13, at_least_one=False) == ([], 0, 10)
    assert recent.read(10, max_bytes=9, end_offset=12, at_least_one=True) == ([], 0, 10)


@examples(200)
@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=8),
    start=st.integers(0, 7),
    max_bytes=st.integers(0, 20),
    end=st.integers(0, 24),
    at_least_one=st.booleans(),
)
def test_it_reads_as_a_list_would(
    counts: list[int], start: int, max_bytes: int, end: int, at_least_one: bool
) -> None:
    recent, bases = Tail(), [0]
    for count in counts:
        recent.append(bases[-1], bases[-1] + count, bytes(count))
        bases.append(bases[-1] + count)
    index = start % len(counts)
    read = recent.read(bases[index], max_bytes=max_bytes, end_offset=end, at_least_one=at_least_one)
    expected: list[int] = []
    for at in range(index, len(counts)):
        is_first = at_least_one and not expected
        if bases[at + 1] > end or (sum(expected) + counts[at] > max_bytes and not is_first):
            break
        expected.append(counts[at])
    assert read is not None
    assert [len(chunk) for chunk in read.chunks] == expected
    assert (read.size, read.next_offset) == (sum(expected), bases[index + len(expected)])
