"""Histories that clients in any language record through a control server, and their verdicts.

The operations have the fields of `history.jsonl` (docs/verification-history.md), but for the index
and the time, which an operation gets here: the server is the one clock of all clients and of the
nemesis. In a model of a log, a value may also be a text: the value of the record as it stands in
Kafka; in every other model, any JSON.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quorumlog.chaos.control.kinds import Misuse

if TYPE_CHECKING:
    from quorumlog.chaos.checkers.checker import Checker
    from quorumlog.chaos.history import HistoryWriter, Message

_OPEN_MAX: Final = 100  # histories without a verdict: each holds a file open
_FIELDS: Final = ("process", "type", "f", "micro", "error", "details")
_ASSIGNED: Final = ("index", "time_ns")
_MICRO_FIELDS: Final = ("key", "offset", "value", "f", "checksum")
_SEND: Final = "send"
_TXN: Final = "txn"
_INVOKE: Final = "invoke"
_CLIENT_TYPES: Final = (_INVOKE, "ok", "fail", "info")
_INT64: Final = range(-(1 << 63), 1 << 63)


class Conflict(Exception):
    """A request that the present state does not allow. `hint`: how to go on."""

    def __init__(self, error: str, hint: str) -> None:
        super().__init__(f"{error}; {hint}")
        self.error: Final = error
        self.hint: Final = hint


class _Event(NamedTuple):
    process: int
    type: str
    f: str
    messages: "tuple[Message, ...]"
    error: str
    details: str


class _History:
    """One history.

    `lock` is held for each change by a client or the nemesis, and never for long: the nemesis waits
    for it on its event loop. `judging` is held while the verdict is made, after `is_closed` is set.
    """

    def __init__(self, writer: "HistoryWriter", checker: "Checker") -> None:
        from quorumlog.chaos.checkers.explode import IN_TXN
        from quorumlog.chaos.history.recorded_values import RecordedValues

        self.writer: Final = writer
        self.model: Final = checker.model
        self.operations: Final = sorted(checker.operations)
        self.micros: Final = sorted(checker.micros) or IN_TXN  # of transactions
        self.is_of_log: Final = _SEND in checker.operations
        self.lock: Final = threading.Lock()
        self.values = RecordedValues()
        self.open: dict[int, str] = {}  # process -> its unfinished operation
        self.keys: Final[set[str]] = set()
        self.next_process = 0
        self.judging: Final = threading.Lock()
        self.is_closed = False
        self.verdict: dict[str, Any] | None = None
        self.error: Exception | None = None  # of the attempt to judge it

    def release(self) -> None:
        """Release the state of the operations: a server may judge thousands of histories."""
        self.values = type(self.values)()
        self.open = {}
        self.keys.clear()


class Histories:
    """The histories of one cluster, by id. Thread-safe.

    `client` returns the arguments of a client for the final reads. `heal` is called before them.
    """

    def __init__(self, directory: Path, client: Callable[[], Mapping[str, Any]]) -> None:
        self.heal: Callable[[], object] = lambda: None
        self._directory: Final = directory
        self._client: Final = client
        self._lock: Final = threading.Lock()
        self._histories: Final[dict[int, _History]] = {}

    def open(
        self, *, name: str = "clients of a control server", model: str = "kafka_log"
    ) -> dict[str, Any]:
        """Open a history that `model` judges: a name of `quorumlog verify --model`.

        Raises Conflict if too many are open, or an extra is not installed, and NotRegistered or
        ValueError for an unknown model. A request imports no module: MODULE:NAME is a Misuse.
        """
        from quorumlog.extras import why_no_checks

        if reason := why_no_checks():
            raise Conflict("this installation cannot judge histories", reason)
        if ":" in model.partition("=")[0]:
            hint = "declare it as an entry point of the group quorumlog.models, and give its name"
            raise Misuse(f"no model is imported from the module of {model!r}", hint)
        from quorumlog.chaos.checkers.registry import find_checker
        from quorumlog.chaos.history import HistoryWriter

        checker = find_checker(model)
        with self._lock:
            unjudged = sum(not one.is_closed for one in self._histories.values())
            if unjudged >= _OPEN_MAX:
                raise Conflict(f"{unjudged} histories are open", "get the verdicts of some first")
            number = len(self._histories) + 1
            while (self._directory / str(number)).exists():  # of an earlier server
                number += 1
            directory = self._directory / str(number)
            meta = {"workload": "clients of a control server", "model": model, "test": name}
            self._histories[number] = _History(HistoryWriter(directory, meta=meta), checker)
        return {"id": number, "directory": str(directory)}

    def record(
        self,
        *,
        id: int,  # noqa: A002 - the name in the path
        operations: Sequence[Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Append events: all, or none if one is malformed. Raises Misuse, Conflict."""
        history = self._find(id)
        with history.lock:
            if history.is_closed:
                raise Conflict(f"history {id} is judged", "open another history")
            still_open = dict(history.open)
            events = [
                _event_of(place, said, still_open, history) for place, said in enumerate(operations)
            ]
            for event in events:
                history.writer.append(
                    event.process,
                    event.type,
                    event.f,
                    event.messages,
                    error=event.error,
                    details=event.details,
                )
                history.next_process = max(history.next_process, event.process + 1)
                sent = [one for one in event.messages if (one.f or event.f) == _SEND]
                history.keys.update(message.key for message in sent)
            history.open = still_open
        return {"events": len(events)}

    def verdict(self, *, id: int) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """Return the verdict; the first call heals, makes the final reads, and judges.

        Raises Misuse, and HistoryError if the history is malformed.
        """
        history = self._find(id)
        with history.judging:
            if history.error is not None:
                raise history.error
            if history.verdict is None:
                self.heal()
                with history.lock:
                    history.is_closed = True
                try:
                    history.verdict = self._judged(history)
                except Exception as error:
                    history.error = error
                    history.writer.close(finished=False)
                    raise
                finally:
                    history.release()
            return history.verdict

    def note(self, f: str, node: str, details: str) -> None:
        """Write an act of the nemesis into every history without a verdict."""
        from quorumlog.chaos.history import NEMESIS

        with self._lock:
            histories = [*self._histories.values()]
        for history in histories:
            with history.lock:
                if not history.is_closed:
                    history.writer.append(NEMESIS, "info", f, node=node, details=details)

    def close(self) -> None:
        """End the histories without a verdict, as cut short."""
        with self._lock:
            for history in self._histories.values():
                with history.lock:
                    if not history.is_closed:
                        history.is_closed = True
                        history.writer.close(finished=False)

    def _find(self, number: int) -> _History:
        with self._lock:
            history = self._histories.get(number)
            known = ", ".join(map(str, self._histories)) or "none"
        if history is None:
            raise Misuse(
                f"there is no history {number}", f"open are {known}: POST /v1/histories opens one"
            )
        return history

    def _judged(self, history: _History) -> dict[str, Any]:
        from quorumlog.chaos.control.final_reads import read_to_the_end
        from quorumlog.chaos.history import HistorySource
        from quorumlog.chaos.report import write_report
        from quorumlog.chaos.run.run_directory import REPORT_FILE, keep_verdict
        from quorumlog.chaos.verify import verify_history

        if history.keys:
            read_to_the_end(
                history.writer,
                client=self._client(),
                keys=history.keys,
                first_process=history.next_process,
                number_of=history.values.number,
            )
        history.writer.close()
        directory = history.writer.directory
        source = HistorySource(directory)
        verdict = verify_history(source, engine="local")
        keep_verdict(directory, verdict)
        write_report(source, verdict, directory / REPORT_FILE)
        return {**verdict.as_json(), "report": str(directory / REPORT_FILE)}


def _event_of(
    place: int, said: Mapping[str, Any], still_open: dict[int, str], history: _History
) -> _Event:
    """Return an event, and change the unfinished operations by it. Raises Misuse."""
    try:
        return _parsed(said, still_open, history)
    except (ValueError, TypeError) as error:
        raise Misuse(
            f"operations[{place}]: {error}",
            "docs/verification-history.md has the fields; none of these operations was recorded",
        ) from error


def _parsed(said: Mapping[str, Any], still_open: dict[int, str], history: _History) -> _Event:
    _check_fields(said, _FIELDS)
    process, type_, f = said.get("process"), said.get("type"), said.get("f")
    if type(process) is not int or process < 0:
        raise ValueError("process must be a whole number from 0")
    if type_ not in _CLIENT_TYPES:
        raise ValueError(f"type must be one of {', '.join(_CLIENT_TYPES)}")
    if not isinstance(f, str):
        raise TypeError("f must be a text, such as send or poll")
    _check_f(f, history.operations, f"operations of {history.model}")
    begun = still_open.pop(process, None)
    if type_ == _INVOKE:
        if begun is not None:
            raise ValueError(f"process {process} has not ended its {begun}: end it first")
        still_open[process] = f
    elif begun != f:
        has = "no operation" if begun is None else f"a {begun}"
        raise ValueError(f"process {process} has begun {has}: invoke the {f} first")
    micro = said.get("micro", [])
    if not isinstance(micro, list):
        raise TypeError("micro must be a list")
    return _Event(
        process=process,
        type=str(type_),
        f=f,
        messages=tuple(_message_of(one, f, history) for one in micro),
        error=_text(said, "error"),
        details=_text(said, "details"),
    )


def _message_of(said: Any, f: str, history: _History) -> "Message":
    from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
    from quorumlog.chaos.history.model import number_or_text

    if not isinstance(said, dict):
        raise TypeError("micro must have objects with key, offset and value")
    _check_fields(said, _MICRO_FIELDS)
    offset, checksum = said.get("offset", UNKNOWN_OFFSET), said.get("checksum", 0)
    for name, number in (("offset", offset), ("checksum", checksum)):
        if type(number) is not int or number not in _INT64:
            raise ValueError(f"{name} must be a whole number")
    if offset < UNKNOWN_OFFSET:
        raise ValueError("offset must be a whole number from 0, or -1 for none")
    own_f = _text(said, "f")
    if f == _TXN:
        _check_f(own_f, history.micros, "micro-operations of a txn")
    if history.is_of_log:
        value, text = _number_in(said.get("value", -1), history), ""
    else:
        value, text = number_or_text(said.get("value"))
    return Message(_key_in(said, history), offset, value, text, own_f, checksum)


def _key_in(said: Mapping[str, Any], history: _History) -> str:
    """Return the key: a partition in a log, else the name of an object, which may be ""."""
    key = said.get("key", None if history.is_of_log else "")
    is_partition = isinstance(key, str) and key.rpartition("-")[2].isdecimal()
    if history.is_of_log and not is_partition:
        raise ValueError("key must be a topic-partition, such as orders-0")
    if not isinstance(key, str):
        raise TypeError("key must be a text")
    return key


def _number_in(value: Any, history: _History) -> int:
    """Return the number of a value in a log: a text has one of its own."""
    if isinstance(value, str):
        return history.values.number(value)
    if type(value) is not int:
        raise TypeError("value must be a whole number or a text")
    if value not in _INT64:
        raise ValueError("value is beyond 64 bits")
    return value


def _text(said: Mapping[str, Any], name: str) -> str:
    text = said.get(name, "")
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text")
    return text


def _check_fields(said: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in said:
        if name in _ASSIGNED:
            raise ValueError(f"{name} is assigned when the operation arrives: leave it out")
        if name not in known:
            raise ValueError(f"there is no field {name!r}{_like(name, known)}")


def _check_f(f: str, known: Sequence[str], noun: str) -> None:
    if f not in known:
        names = ", ".join(known)
        raise ValueError(f"f = {f!r} is none of the {noun}{_like(f, known)}; they are {names}")


def _like(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name, known, n=1)
    return "".join(f" - did you mean {one}?" for one in found)
