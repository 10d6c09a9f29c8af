"""Rules that answer requests of clients with errors, or count them, by hand.

A rule by hand holds for the clients of all nodes. A rule with answers that matches no request is a
mistake of its test: `complaint` names the requests that were seen instead.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from quorumlog.chaos.back_ends.back_end import BackEnd
from quorumlog.chaos.control.acts import Act, NodeIds, is_mistake
from quorumlog.chaos.faults.answers import AnswerRequests, ObserveRequests, OfOneTopic
from quorumlog.chaos.faults.fault import MILLION
from quorumlog.chaos.faults.links import After, LinkRule
from quorumlog.chaos.registered import registered
from quorumlog.wire.codec.error_codes import ErrorCode

_SEEN_SHOWN_MAX: Final = 10
_AFTER: Final[Mapping[str, After]] = {"refused": "refused", "appended": "appended"}

__tracebackhide__ = is_mistake  # of every function in this module


class Limits(TypedDict, total=False):
    """The parameters of an answer; None: not given. See `ManualNemesis.answer`."""

    topic: str | None
    partition: int | None
    client_id: str | None
    times: int | None
    probability: float | None
    on_call: int | None
    after: str


def answer_of(
    api: str,
    error: str | int,
    *,
    topic: str | None = None,
    partition: int | None = None,
    client_id: str | None = None,
    times: int | None = None,
    probability: float | None = None,
    on_call: int | None = None,
    after: str = "refused",
) -> AnswerRequests:
    """Return the fault of a rule by hand. Raises ValueError for arguments that do not fit."""
    given = {"times": times, "probability": probability, "on_call": on_call}
    limits = [name for name, value in given.items() if value is not None]
    if len(limits) > 1:
        raise ValueError(f"{' and '.join(limits)}: give one of times, probability and on_call")
    _require_no_bools(**given)
    for name in ("times", "on_call"):
        if (value := given[name]) is not None and value < 1:
            raise ValueError(f"{name} = {value}: it must be at least 1")
    if probability is not None and not 0 < probability <= 1:
        raise ValueError(f"probability = {probability}: it must be above 0, and at most 1")
    return AnswerRequests(
        api=api,
        error=_error_name(error),
        **_filters(topic, partition, client_id),
        times=times or 0,
        share_ppm=MILLION if probability is None else max(1, round(probability * MILLION)),
        on_call=on_call or 0,
        after=registered(_AFTER, after, "moment of an answer (after)"),
    )


def observation_of(
    api: str, *, topic: str | None, partition: int | None, client_id: str | None
) -> ObserveRequests:
    """Return the fault of a rule that counts. Raises ValueError for arguments that do not fit."""
    return ObserveRequests(api=api, **_filters(topic, partition, client_id))


def _error_name(error: str | int) -> str:
    if isinstance(error, str):
        return error
    try:
        return ErrorCode(error).name
    except ValueError:
        raise ValueError(f"no error has the number {error}") from None


def _require_no_bools(**given: object) -> None:
    for name, value in given.items():
        if isinstance(value, bool):
            raise ValueError(f"{name} = {value}: it is a number")  # noqa: TRY004 - as all mistakes


def _filters(topic: str | None, partition: int | None, client_id: str | None) -> dict[str, Any]:
    _require_no_bools(partition=partition)
    if topic == "" or client_id == "":
        name = "topic" if topic == "" else "client_id"
        raise ValueError(f"{name} = '': leave it out for any {name}")
    if partition is not None and partition < 0:
        raise ValueError(f"partition = {partition}: it must be at least 0")
    return {
        "topic": topic or "",
        "partition": -1 if partition is None else partition,
        "client_id": client_id or "",
    }


class Rule(Act):
    """The verb that began a rule: awaitable, as any verb.

    number: of the rule, as in `ManualNemesis.rules`.
    """

    def __init__(
        self,
        future: "Future[NodeIds]",
        seen: Callable[[], object],
        number: int,
        row: Callable[[], Mapping[str, Any]],
    ) -> None:
        super().__init__(future, seen)
        self.number: Final = number
        self._row: Final = row

    @property
    def matches(self) -> int:
        """The requests that the rule has matched, until it was spent. Blocks for a moment."""
        return int(self._row()["matches"])

    @property
    def answered(self) -> int:
        """The requests that got the error. Blocks for a moment."""
        return int(self._row()["answered"])


class RuleFor:
    """A rule for the time of a block, which receives the rule."""

    def __init__(self, begin: Callable[[], Rule], end: Callable[[], Act]) -> None:
        self._begin: Final = begin
        self._end: Final = end

    def __enter__(self) -> Rule:
        rule = self._begin()
        _ = rule.node_ids
        return rule

    def __exit__(self, *_: object) -> None:
        _ = self._end().node_ids

    async def __aenter__(self) -> Rule:
        rule = self._begin()
        await rule
        return rule

    async def __aexit__(self, *_: object) -> None:
        await self._end()


@dataclass(slots=True)
class _Known:
    """A rule of this test. rule_id: of the back end, once it was imposed."""

    fault: OfOneTopic
    rule_id: str = ""
    tally: Mapping[str, Any] | None = None
    is_in_force: bool = False

    def row(self, number: int) -> dict[str, Any]:
        """Return the rule as plain values."""
        tally, fault = self.tally or {}, self.fault
        row: dict[str, Any] = {
            "rule": number,
            "kind": fault.name,
            "api": fault.api,
            "topic": fault.topic or None,
            "partition": None if fault.partition < 0 else fault.partition,
            "client_id": fault.client_id or None,
            "in_force": self.is_in_force,
            "matches": tally.get("matched", 0),
        }
        if isinstance(fault, AnswerRequests):
            row |= {
                "error": fault.error,
                "after": fault.after,
                "times": fault.times or None,
                "on_call": fault.on_call or None,
                "probability": fault.share_ppm / MILLION if fault.share_ppm < MILLION else None,
                "answered": tally.get("answered", 0),
            }
        return row


class ErrorRules:
    """The rules of one nemesis, numbered from 1; the counts of ended rules stay."""

    def __init__(self, back_end: BackEnd) -> None:
        self._back_end: Final = back_end
        self._known: Final[dict[int, _Known]] = {}

    def add(self, fault: OfOneTopic) -> int:
        """Give a rule its number."""
        number = len(self._known) + 1
        self._known[number] = _Known(fault)
        return number

    def note_imposed(self, fault: object, rules: Sequence[LinkRule]) -> None:
        """Note that a fault is in force; one that was not added gets a number now."""
        if not isinstance(fault, OfOneTopic):
            return
        numbers = [n for n, one in self._known.items() if one.fault is fault]
        known = self._known[numbers[0] if numbers else self.add(fault)]
        known.rule_id, known.is_in_force = rules[0].id, True

    async def end(self, fault: object) -> None:
        """Note that a fault has ended, and its counts."""
        if isinstance(fault, OfOneTopic):
            await self.refresh()
            for known in self._known.values():
                known.is_in_force &= known.fault is not fault

    async def refresh(self) -> None:
        """Read the counts of the rules from the back end, if it has any."""
        if not any(known.rule_id for known in self._known.values()):
            return
        tallies = await self._back_end.tallies()
        for known in self._known.values():
            known.tally = tallies.get(known.rule_id, known.tally)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rules as plain values, with the counts of the last refresh."""
        return [known.row(number) for number, known in self._known.items()]

    def complaint(self) -> str | None:
        """Return the error of the first rule with answers that matched nothing."""
        for number, known in self._known.items():
            fault = known.fault
            if isinstance(fault, AnswerRequests) and not (known.tally or {}).get("matched"):
                return (
                    f"rule {number} ({_text(fault)}) matched no request;"
                    f" {_seen((known.tally or {}).get('seen', []))}"
                )
        return None


def _text(fault: AnswerRequests) -> str:
    """Return a rule in words: `answer Produce with REQUEST_TIMED_OUT, topic orders`."""
    words = [f"answer {fault.api} with {fault.error}"]
    words += [f"topic {fault.topic}"] if fault.topic else []
    words += [f"partition {fault.partition}"] if fault.partition >= 0 else []
    words += [f"client {fault.client_id}"] if fault.client_id else []
    return ", ".join(words)


def _seen(rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return "no client sent any request since then"
    counted = sorted(rows, key=lambda row: -int(row[2]))
    shown = [f"{n} {api} of client {client}" for api, client, n in counted[:_SEEN_SHOWN_MAX]]
    more = len(counted) - len(shown)
    return f"requests since then: {', '.join(shown)}" + f", and {more} more kinds" * bool(more)
