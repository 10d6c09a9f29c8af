"""The aborted transactions of a log: the entries of a file, and those that a read needs."""

import pytest

from quorumlog.storage.core.aborted_transactions import (
    AbortedTransaction,
    AbortedTransactions,
    CorruptTransactionIndex,
    decode_entries,
    encode_index,
    split_index,
)

FIRST = AbortedTransaction(7, 10, 20, 15)
SECOND = AbortedTransaction(8, 15, 30, 31)


def entries(*aborted: AbortedTransaction) -> bytes:
    return split_index(encode_index(aborted, -1))[1]


def test_a_read_needs_the_transactions_that_begin_before_its_end() -> None:
    aborted = AbortedTransactions()
    for one in (FIRST, SECOND):
        aborted.add(one)
    assert aborted.reaching_into(0, 10) == []
    assert aborted.reaching_into(0, 11) == [FIRST]
    assert aborted.reaching_into(0, 15) == [FIRST]
    assert aborted.reaching_into(0, 16) == [FIRST, SECOND]
    assert aborted.reaching_into(20, 40) == [FIRST, SECOND]
    assert aborted.reaching_into(21, 40) == [SECOND]


def test_entries_are_read_as_they_were_written() -> None:
    assert decode_entries(entries(FIRST, SECOND), 0, 40) == [FIRST, SECOND]
    marker_alone = AbortedTransaction(9, 35, 35, 36)
    assert decode_entries(entries(marker_alone), 35, 36) == [marker_alone]


@pytest.mark.parametrize(
    "wrong",
    [
        (AbortedTransaction(7, 21, 20, 15),),  # it begins behind its marker
        (SECOND, FIRST),
        (FIRST, FIRST),
        (AbortedTransaction(7, 10, 40, 41),),
        (AbortedTransaction(7, 1, 4, 5),),
    ],
)
def test_entries_that_cannot_be_are_corrupt(wrong: tuple[AbortedTransaction, ...]) -> None:
    with pytest.raises(CorruptTransactionIndex):
        decode_entries(entries(*wrong), 5, 40)
