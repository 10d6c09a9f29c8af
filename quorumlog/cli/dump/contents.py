"""The output of a file's reader: items, and problems where the file is damaged."""

from collections.abc import Iterator
from typing import Any, NamedTuple

Item = dict[str, Any]
"""A batch or an entry, of JSON values."""


class Problem(NamedTuple):
    """A defect of a file.

    `position`: the byte where it begins; None if it is about the file as a whole.
    """

    position: int | None
    what: str


class Contents(NamedTuple):
    """The content of a file. `items` reads it lazily and holds one item at a time."""

    kind: str
    items_name: str
    items: Iterator[Item | Problem]


class Asked(NamedTuple):
    """The caller's filter. `offset`: the first record; None: all records."""

    offset: int | None = None
    records_max: int | None = None
    with_records: bool = True
    with_values: bool = False
    only_index_faults: bool = False
