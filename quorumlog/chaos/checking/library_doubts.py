"""Compares the results of operations with the brokers' responses on the wire.

A driver records the result that its library returns. Where the forwarders recorded the responses
(`responses.jsonl`), each witness of an anomaly gets the responses with errors to its clients, and
an operation whose result the last response contradicts is a doubt about the library: it dropped an
error, or invented a value. The anomaly stays: a doubt names the place to search first.

  committed  "no committed offset", and the last OffsetFetch in its time had an error;
  commit     success, and the last OffsetCommit in its time had an error;
  txn        success, and the last EndTxn, TxnOffsetCommit, AddOffsetsToTxn or AddPartitionsToTxn in
             its time had an error;
  group_poll the first record after `assigned`, and the last OffsetFetch since the previous poll,
             outside of `committed`, had an error.

The first response without an error after errors has a line, so the last line decides. A library may
use the responses of several requests in one operation: a doubt is no proof.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history.model import NEVER_NS, UNKNOWN_OFFSET
from quorumlog.chaos.network.error_responses import ErrorResponse

_CLIENT: Final = re.compile(r"[a-z]+(\d+)(-[a-z]+)?")  # as workloads name them: c17 of process 17
_FETCH: Final = "OffsetFetch"
_APIS: Final[Mapping[str, tuple[str, ...]]] = {
    "committed": (_FETCH,),
    "commit": ("OffsetCommit",),
    "txn": ("EndTxn", "TxnOffsetCommit", "AddOffsetsToTxn", "AddPartitionsToTxn"),
}
_RESULTS: Final[Mapping[str, str]] = {
    "committed": "no committed offset",
    "commit": "a successful commit",
    "txn": "a committed transaction",
    "group_poll": "the first record",
}
_COLUMNS: Final = ("index", "process", "f", "invoked_ns", "completed_ns", "micro")
_BEFORE_NS: Final = 2_000_000_000  # before an operation: its position may come from that time
_SHOWN_MAX: Final = 5  # responses of a witness, those of one kind counted as one
_USUAL: Final = frozenset(
    {"CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "MEMBER_ID_REQUIRED"}
)
DOUBTS_MAX: Final = 32


class _Doubt(NamedTuple):
    """An operation, and the response that contradicts its result."""

    process: int
    f: str
    key: str
    completed_ns: int
    response: ErrorResponse

    @property
    def text(self) -> str:
        of = f" of {self.key}" if self.key else ""
        return (
            f"process {self.process} recorded {_RESULTS[self.f]}{of} at "
            f"{self.completed_ns / 1e9:.3f} s, and {self.response.text} at "
            f"{self.response.time_ns / 1e9:.3f} s"
        )


class _Clients:
    """The responses by the process of their client, in order of time."""

    def __init__(self, responses: Sequence[ErrorResponse]) -> None:
        self._of: Final[dict[int, list[ErrorResponse]]] = {}
        self._left_out: Final = [one for one in responses if one.left_out]
        for one in responses:
            if not one.left_out and (found := _CLIENT.fullmatch(one.client)):
                self._of.setdefault(int(found[1]), []).append(one)

    def with_errors(self, *apis: str) -> list[int]:
        """Return the processes that got an error from one of these APIs."""
        return [
            process
            for process, of in self._of.items()
            if any(one.is_error and one.api in apis for one in of)
        ]

    def between(self, process: int, start_ns: int, end_ns: int) -> Iterator[ErrorResponse]:
        """Yield the responses to a process in this time."""
        return (one for one in self._of.get(process, ()) if start_ns <= one.time_ns <= end_ns)

    def has_left_out(self, api: str, start_ns: int, end_ns: int) -> bool:
        """Return whether responses of an API in this time may have no line."""
        return any(
            one.api == api and one.time_ns <= end_ns and start_ns <= one.until_ns
            for one in self._left_out
        )


def with_responses(
    verdict: Verdict, table: pa.Table, responses: Sequence[ErrorResponse]
) -> Verdict:
    """Return the verdict with the responses beside its witnesses, and doubts about the library.

    `table`: schema.OPERATIONS of the whole history. The anomalies, and `valid`, stay.
    """
    clients = _Clients(responses)
    doubts = sorted(_doubts(table, clients), key=lambda doubt: doubt.completed_ns)
    for result in verdict.results:
        for witness in result.witnesses:
            _add_responses(witness, clients, doubts)
    texts = dict.fromkeys(doubt.text for doubt in doubts)
    return replace(verdict, library_doubts=[*texts][:DOUBTS_MAX])


def _doubts(table: pa.Table, clients: _Clients) -> Iterator[_Doubt]:
    """Yield the successful operations whose result the last response contradicts."""
    for f, apis in _APIS.items():
        processes = clients.with_errors(*apis)
        if not processes:
            continue
        chosen = table.filter(
            (pc.field("f") == f) & (pc.field("type") == "ok") & pc.field("process").isin(processes)
        )
        for row in chosen.select(_COLUMNS).to_pylist():
            yield from _doubts_of(row, apis, clients)
    for process in clients.with_errors(_FETCH):
        yield from _doubts_of_starts(table.filter(pc.field("process") == process), process, clients)


def _doubts_of_starts(table: pa.Table, process: int, clients: _Clients) -> Iterator[_Doubt]:
    """Yield the partitions that a member began to read although it got no position."""
    rows = table.select(_COLUMNS).sort_by("invoked_ns").to_pylist()
    asked = [(row["invoked_ns"], row["completed_ns"]) for row in rows if row["f"] == "committed"]
    new: dict[str, int] = {}  # assigned partitions without a record, since the end of a poll
    since_ns = 0
    for row in (row for row in rows if row["f"] == "group_poll"):
        end_ns = row["completed_ns"]
        for one in row["micro"]:
            key = one["key"]
            if one["f"] == "assigned":
                new[key] = since_ns
            elif one["f"] == "group_poll" and key in new:
                met = [
                    response
                    for response in clients.between(process, new.pop(key), end_ns)
                    if response.api == _FETCH
                    and response.concerns(key)
                    and not any(start <= response.time_ns <= end for start, end in asked)
                ]
                if met and met[-1].is_error and not clients.has_left_out(_FETCH, since_ns, end_ns):
                    yield _Doubt(process, "group_poll", key, end_ns, met[-1])
        since_ns = end_ns


def _doubts_of(row: Mapping[str, Any], apis: Sequence[str], clients: _Clients) -> Iterator[_Doubt]:
    f, process = row["f"], row["process"]
    start_ns, end_ns = row["invoked_ns"], row["completed_ns"]
    met = [*clients.between(process, start_ns, end_ns)]
    if not any(one.is_error for one in met):
        return
    keys = [""] if f == "txn" else [one["key"] for one in row["micro"] if _is_judged(f, one)]
    for api in apis:
        if clients.has_left_out(api, start_ns, end_ns):
            continue  # the last response may have no line
        for key in keys:
            of_api = [one for one in met if one.api == api and (not key or one.concerns(key))]
            if of_api and of_api[-1].is_error:
                yield _Doubt(process, f, key, end_ns, of_api[-1])


def _is_judged(f: str, message: Mapping[str, Any]) -> bool:
    return f != "committed" or message["offset"] == UNKNOWN_OFFSET


def _add_responses(witness: dict[str, Any], clients: _Clients, doubts: Sequence[_Doubt]) -> None:
    """Write into a witness the responses with errors to its clients, and the doubts about them."""
    met: dict[ErrorResponse, None] = {}
    for op in witness["ops"]:
        end_ns = NEVER_NS if op["completed_ns"] is None else op["completed_ns"]
        between = clients.between(op["process"], op["invoked_ns"] - _BEFORE_NS, end_ns)
        met |= dict.fromkeys(one for one in between if one.is_error)
    kinds: dict[tuple[int, str, str, str], dict[str, Any]] = {}
    for one in met:
        kind = (one.node, one.client, one.api, one.error)
        kinds.setdefault(kind, {**one.as_json(), "count": 0})["count"] += 1
    found = sorted(kinds.values(), key=lambda one: (one["error"] in _USUAL, one["time_ns"]))
    witness["responses"] = found[:_SHOWN_MAX]
    processes = {op["process"] for op in witness["ops"]}
    witness["library_doubts"] = [
        doubt.text
        for doubt in doubts
        if doubt.process in processes and doubt.key in {"", witness["key"]}
    ][:_SHOWN_MAX]
