"""Decides whether the pairs in a history are values, or keys with values of jepsen.independent.

jepsen.independent puts a key before each value. Its pairs are map entries, so Jepsen prints them as
`[key value]`, like a value that is a pair. The structure shows the difference:

  - an invocation of [key nil], such as a read's, is of a key: a plain one has nil;
  - a cas of [key [old new]] is of a key, and so is a transaction of [key [operation ...]];
  - an invocation of nil, and a value that is no pair, are of a history without keys.

A history with signs of both, or with pairs and no sign, is refused: Pairs decides. Source:
jepsen.independent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from quorumlog.chaos.history.model import INVOKE

Pairs = Literal["keys", "values"]
PAIRS_OPTION: Final = "--pairs"
_CAS: Final = "cas"
_TXN: Final = "txn"
_REGISTER: Final = frozenset({"read", "write", _CAS})
_MICRO_FIELDS: Final = 3  # f, key, value


@dataclass(slots=True)
class _Signs:
    """The first place of each sign, or None."""

    pair: int | None = None
    keyed: int | None = None
    nil: int | None = None
    no_pair: int | None = None


def is_micro(value: Any) -> bool:
    """Return whether a value is [f key value], with a text as f: an operation of a transaction."""
    return isinstance(value, list) and len(value) == _MICRO_FIELDS and isinstance(value[0], str)


def are_micros(value: Any) -> bool:
    """Return whether a value is a list of operations of a transaction, and not empty."""
    return isinstance(value, list) and bool(value) and all(is_micro(one) for one in value)


def have_keys(rows: Sequence[dict[str, Any]], places: Sequence[int], pairs: Pairs | None) -> bool:
    """Return whether the values of clients are keys with values. `places`: of the rows in the file.

    Raises ValueError if the structure does not decide, or contradicts `pairs`.
    """
    if pairs == "values" or any(row.get("key") is not None for row in rows):
        return False
    signs = _signs_of(rows, places)
    if pairs == "keys":
        if signs.no_pair is not None:
            raise ValueError(f"the value at {signs.no_pair} is no pair of a key and a value")
        return True
    if signs.pair is None:
        return False
    if signs.no_pair is not None:
        fs = {row.get("f") for row in rows if _is_client(row)}
        if signs.keyed is not None and fs <= _REGISTER:
            raise ValueError(
                f"{signs.keyed} invokes [key nil], as jepsen.independent does, which rules out "
                f"plain values; the value at {signs.no_pair} is no pair, which rules out keys: "
                f"{PAIRS_OPTION} values reads all of them as values"
            )
        return False
    if (signs.keyed is None) == (signs.nil is None):
        raise ValueError(
            "its values are pairs, and may be values, or keys with values of jepsen.independent: "
            f"{_doubt(signs)}; {PAIRS_OPTION} keys or {PAIRS_OPTION} values decides"
        )
    return signs.nil is None


def without_keys(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its key and its value apart."""
    value = row.get("value")
    if not _is_client(row) or not isinstance(value, list) or len(value) != 2:
        return row
    return row | {"key": value[0], "value": value[1]}


def _doubt(signs: _Signs) -> str:
    if signs.keyed is None:
        return (
            "no invocation has [key nil], which would rule out values, and none has nil, which "
            "would rule out keys"
        )
    return f"{signs.keyed} rules out values, and {signs.nil}, an invocation of nil, rules out keys"


def _signs_of(rows: Sequence[dict[str, Any]], places: Sequence[int]) -> _Signs:
    signs = _Signs()
    for row, place in zip(rows, places, strict=True):
        if _is_client(row) and row.get("type") in (INVOKE, "ok"):
            for name in _names(row):
                if getattr(signs, name) is None:
                    setattr(signs, name, place)
    return signs


def _names(row: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the signs in one event of a client."""
    value, is_invocation = row.get("value"), row.get("type") == INVOKE
    match value:
        case None:
            if is_invocation:
                yield "nil"
        case [key, inner] if _is_pair(row.get("f"), key, inner):
            yield "pair"
            if is_invocation and (inner is None or row.get("f") == _CAS or are_micros(inner)):
                yield "keyed"
        case _:
            yield "no_pair"


def _is_pair(f: Any, key: Any, inner: Any) -> bool:
    if key is None or is_micro(key):
        return False
    if f == _CAS:  # [old new] has no list, unless the register holds lists
        return not isinstance(key, list) and isinstance(inner, list) and len(inner) == 2
    return f not in (_TXN, None) or not inner or are_micros(inner)  # elle: no f in transactions


def _is_client(row: dict[str, Any]) -> bool:
    return type(row.get("process", 0)) is int
