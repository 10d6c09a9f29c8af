"""Pairs are sorted alike by one small number and by both columns."""

import numpy as np
import pytest

from quorumlog.chaos.checkers.version_order import distinct, sorted_pairs


@pytest.mark.parametrize("widest", [3, 181, 182, 1 << 62])  # 182 * 363 values are above 16 bits
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_pairs_are_in_order_and_rows_of_one_pair_stay(rows: int, widest: int) -> None:
    rng = np.random.default_rng(rows)
    major = rng.integers(0, min(widest, 1 << 30), rows).astype(np.int32)
    minor = rng.integers(-widest, widest, rows)
    wanted = sorted(range(rows), key=lambda row: (int(major[row]), int(minor[row]), row))
    assert sorted_pairs(major, minor).tolist() == wanted
    numbers, first = distinct(major, minor)
    pairs = sorted({*zip(major.tolist(), minor.tolist(), strict=True)})
    assert [pairs[number] for number in numbers.tolist()] == list(
        zip(major.tolist(), minor.tolist(), strict=True)
    )
    earliest = [int(np.flatnonzero(numbers == place)[0]) for place in range(len(pairs))]
    assert first.tolist() == earliest
