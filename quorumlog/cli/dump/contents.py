"""What a reader of a file yields: items, and problems where the file is not whole."""

from collections.abc import Iterator
from typing import Any, NamedTuple

Item = dict[str, Any]
"""A batch or an entry, of values that JSON has."""


class Problem(NamedTuple):
    """Something in a file that is not as it should be.

    `position`: the byte where it begins; None if it is about the file as a whole.
    """

    position: int | None
    what: str


class Contents(NamedTuple):
    """What a file holds. `items` reads it: nothing is kept but the item at hand."""

    kind: str
    items_name: str
    items: Iterator[Item | Problem]


class Asked(NamedTuple):
    """What the caller wants to see. `offset`: the first one; None: all."""

    offset: int | None = None
    records_max: int | None = None
    with_records: bool = True
    with_values: bool = False
    only_index_faults: bool = False
