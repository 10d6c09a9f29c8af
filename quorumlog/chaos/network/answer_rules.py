"""Rules that answer requests with an error, or count them: their matches, and the outcome. Pure.

A rule matches a request of its API, of its client, that names its topic and partition. The
forwarder answers a refused request itself; if the rule matches a part of it, the broker gets the
rest, and the errors are put into its response. With `appended`, the broker gets the request, and
the errors replace the response.

A fetch session (KIP-227) hides the partitions of a Fetch: while a rule needs them, an incremental
fetch is answered with FETCH_SESSION_ID_NOT_FOUND, which a broker sends for an evicted session, and
full fetches are forwarded without a new session.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

from quorumlog.chaos.faults.error_answers import (
    AT_THE_TOP,
    Refusal,
    has_entries,
    merged,
    refuse_all,
    refuse_topic,
)
from quorumlog.chaos.faults.links import Answer, LinkRule, Observe
from quorumlog.chaos.network.request_bytes import (
    BY_NAME_UNTIL,
    SESSIONS_SINCE,
    WITHOUT_SESSION,
    Entry,
    has_reply,
    only_entry,
    session_at,
    session_epoch,
    without_session,
)
from quorumlog.chaos.network.topic_names import Topics
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Request, Response
from quorumlog.wire.codec.schemas import (
    APIS,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    response_class,
)

Chance = Callable[[], float]  # a number in [0, 1)

_MILLION: Final = 1_000_000
_LENGTH_BYTES: Final = 4
_SEEN_MAX: Final = 1_000  # pairs of an API and a client
_ENDED_MAX: Final = 1_000  # rules
_FULL_FETCH: Final = 0
_NAMES_NO_PARTITION: Final = frozenset({"Metadata", "DescribeTopicPartitions"})
_NAMES_IN_REPLY: Final = _NAMES_NO_PARTITION | {"OffsetFetch"}  # a request may mean all topics
_FETCH: Final = b"\0\1"
CLIENT_AT: Final = 12  # the place of the client id in a request, after its size of two bytes


class ErrorRule:
    """A rule in force, on all its links together.

    matched: the requests that it has matched; it counts until it is spent. answered: the
    requests that got its error.
    """

    def __init__(self, rule: LinkRule, effect: Answer | Observe, seen: dict[tuple[str, str], int]):
        self.rule: Final = rule
        self.effect: Final = effect
        self.links = 0  # on which it is in force
        self.matched = self.answered = 0
        self.seen_before: Final = seen
        self.is_spent = False
        self.is_observer: Final = isinstance(effect, Observe)
        error = ErrorCode.NONE if isinstance(effect, Observe) else ErrorCode[effect.error]
        self.refusal: Final = Refusal(error, effect.topic, effect.partition)
        self._name: Final = effect.topic.encode()
        client = effect.client_id.encode()
        self._client: Final = len(client).to_bytes(2, "big") + client if client else b""

    @property
    def needs_partitions(self) -> bool:
        """Whether the rule depends on the partitions that a Fetch names."""
        return bool(self.refusal.topic) or (
            isinstance(self.effect, Answer) and self.refusal.error not in AT_THE_TOP
        )

    def is_of_client(self, head: bytes | memoryview) -> bool:
        """Return False for the first bytes of a request of another client."""
        client = self._client
        if not client:
            return True
        found = bytes(head[CLIENT_AT : CLIENT_AT + len(client)])
        return found == client[: len(found)]

    def matches(self, frame: bytes, topics: Topics) -> bool | None:
        """Return whether the bytes of a request match; None: its decoded fields decide.

        The request is of the rule's API and client.
        """
        effect, name = self.effect, self._name
        if not name:
            is_whole = isinstance(effect, Observe) or effect.api not in {"Fetch", "Metadata"}
            return True if is_whole else None
        if effect.api in _NAMES_IN_REPLY:
            return None
        is_produce = effect.api == "Produce"
        if is_produce and int.from_bytes(frame[6:8], "big") <= BY_NAME_UNTIL:
            is_named = name in frame
        else:
            is_named = topics.are_in(frame, effect.topic) or (not is_produce and name in frame)
        if not is_named:
            return False
        found = only_entry(frame) if is_produce else None
        return None if found is None else self.is_of(found[0], topics)

    def is_of(self, entry: Entry, topics: Topics) -> bool:
        """Return whether the rule matches an entry of a request of its API and client."""
        topic, index = entry
        return not self._name or (
            self.effect.partition in {-1, index}
            and (topic == self._name or topics.names.get(topic) == self.effect.topic)
        )

    def fires(self, chance: Chance) -> bool:
        """Count a match; return whether its request is answered."""
        self.matched += 1
        if self.is_observer:
            return False
        effect = cast(Answer, self.effect)
        if effect.on_call:
            is_due = self.matched == effect.on_call
        else:
            is_due = effect.share_ppm >= _MILLION or chance() * _MILLION < effect.share_ppm
        self.answered += is_due
        self.is_spent = (
            self.answered == effect.times if effect.times else bool(effect.on_call and is_due)
        )
        return is_due

    @property
    def is_appended(self) -> bool:
        """Whether the broker carries out the answered requests."""
        return isinstance(self.effect, Answer) and self.effect.after == "appended"


@dataclass(slots=True)
class Outcome:
    """The outcome of a request under rules.

    frame: for the broker; b"" if it gets none. reply: for the client, in place of the broker's.
    resets: the connection ends, as a broker ends it after an error without a response (acks=0).
    """

    header: RequestHeader
    frame: bytes = b""
    reply: bytes = b""
    resets: bool = False
    whole: Response | None = None  # replaces the broker's response
    errors: list[Response] = field(default_factory=list)  # put into the broker's response
    in_reply: list[Refusal] = field(default_factory=list)  # of entries that the request omits

    @property
    def changes_reply(self) -> bool:
        """Whether the broker's response must be changed."""
        return bool(self.whole or self.errors or self.in_reply)

    def changed(self, frame: bytes, topics: Topics) -> bytes:
        """Return the broker's response with the errors; both with their lengths."""
        header = self.header
        try:
            _, response = decode_response(header.api_key, header.api_version, frame[_LENGTH_BYTES:])
        except MalformedFrame:
            return frame  # the client rejects it, too
        if self.whole is not None:
            if hasattr(self.whole, "throttle_time_ms"):
                self.whole.throttle_time_ms = response.throttle_time_ms  # type: ignore[attr-defined]
            return encoded(header, self.whole)
        errors = [*self.errors]
        for refusal in self.in_reply:
            refused = self._refused(response, refusal, topics)
            errors += [] if refused is None else [refused]
        for one in errors:
            merged(response, one)
        return encoded(header, response)

    def _refused(self, response: Response, refusal: Refusal, topics: Topics) -> Response | None:
        key, version = self.header.api_key, self.header.api_version
        if not refusal.topic:
            return refuse_all(response, key, version, refusal.error)
        topics.learn()
        return refuse_topic(response, key, version, refusal, topics.names, takes=False)


def encoded(header: RequestHeader, response: Response) -> bytes:
    """Return the frame of a response, with its length."""
    return b"".join(encode_response(header, response))


@dataclass(slots=True)
class Plan:
    """The rules that match a request of one entry, by its first bytes, its head, alone.

    It holds for each request of the same API and version, of `rules` and of `changes` of the
    topics, whose head has the same bytes from the client id to `size`. matching: in their order.
    session_at: the place of the session of a Fetch that is to open none; 0: nowhere.
    """

    rules: Sequence[ErrorRule]
    version: int
    changes: int
    size: int
    matching: Sequence[ErrorRule]
    session_at: int
    only_counts: bool = field(init=False)  # no matching rule answers: the head is enough

    def __post_init__(self) -> None:
        """See the fields."""
        self.only_counts = all(rule.is_observer for rule in self.matching)


class AnswerBook:
    """The rules of all links of a network, and the requests seen while there are any."""

    def __init__(self) -> None:
        self.topics: Final = Topics()
        self._rules: Final[dict[str, ErrorRule]] = {}
        self._seen: Final[dict[tuple[str, str], list[int]]] = {}

    def imposed(self, rule: LinkRule) -> ErrorRule | None:
        """Return the counts of a rule, which all its links share; None: it counts nothing.

        A later rule with the id of an ended rule begins its own counts.
        """
        effect = rule.effect
        if not isinstance(effect, Answer | Observe):
            return None
        found = self._rules.get(rule.id)
        if found is None or found.rule is not rule:
            seen = {key: count for key, [count] in self._seen.items()}
            self._rules.pop(rule.id, None)
            found = self._rules[rule.id] = ErrorRule(rule, effect, seen)
        found.links += 1
        return found

    def lifted(self, rule: ErrorRule) -> None:
        """Note that a rule has ended on a link. The counts of the last ended rules are kept."""
        rule.links -= 1
        if rule.links:
            return
        ended = [one.rule.id for one in self._rules.values() if not one.links]
        for rule_id in ended[:-_ENDED_MAX]:
            del self._rules[rule_id]

    def count_of(self, api: str, client: str) -> list[int]:
        """Return the count of the requests seen on links with a rule: its only item."""
        key, seen = (api, client), self._seen
        return seen.setdefault(key, [0]) if key in seen or len(seen) < _SEEN_MAX else [0]

    def tallies(self) -> dict[str, dict[str, Any]]:
        """Return by rule id: `matched`, `answered`, and `seen` since then: [API, client, count].

        An ended rule that has matched requests has seen nothing: its counts suffice.
        """
        return {
            rule_id: {
                "matched": rule.matched,
                "answered": rule.answered,
                "seen": [
                    [*key, count - rule.seen_before.get(key, 0)]
                    for key, [count] in sorted(self._seen.items())
                    if count > rule.seen_before.get(key, 0) and (rule.links or not rule.matched)
                ],
            }
            for rule_id, rule in self._rules.items()
        }

    def plan(self, head: bytes, rules: Sequence[ErrorRule]) -> Plan | None:
        """Return the plan for requests with this head; None: `judge` needs the whole request."""
        found, is_fetch = only_entry(head), head[4:6] == _FETCH
        if found is None:
            return None
        entry, size = found
        live = [rule for rule in rules if rule.is_of_client(head)]
        session = 0
        if is_fetch:
            if any(not (rule.refusal.topic or rule.is_observer) for rule in live):
                return None  # it may answer the session alone
            if any(rule.needs_partitions for rule in live):
                epoch = session_epoch(head, session_at(head))
                if epoch > _FULL_FETCH:
                    return None
                session = session_at(head) if epoch == _FULL_FETCH else 0
        self.topics.learn()
        is_answered = has_reply(head)
        matching = [
            rule
            for rule in live
            if rule.is_of(entry, self.topics) and (is_answered or not rule.is_appended)
        ]
        version = int.from_bytes(head[6:8], "big")
        return Plan(rules, version, self.topics.changes, size, matching, session)

    def judge(self, frame: bytes, rules: Sequence[ErrorRule], chance: Chance) -> Outcome | None:
        """Apply rules of its API to a request, a frame with its length; None: it is unchanged."""
        rules = [rule for rule in rules if rule.is_of_client(frame)]
        kept, version = frame, int.from_bytes(frame[6:8], "big")
        has_session = frame[4:6] == _FETCH and version >= SESSIONS_SINCE
        if has_session and any(rule.needs_partitions for rule in rules):
            place = session_at(frame)
            epoch = session_epoch(frame, place) if place else None
            if epoch is None or epoch > _FULL_FETCH:
                return self.answer(frame, rules, None, chance)
            if epoch == _FULL_FETCH:
                frame = without_session(frame, place)
        found = [rule.matches(frame, self.topics) for rule in rules]
        live = [rule for rule, match in zip(rules, found, strict=True) if match is not False]
        if any(rule.is_appended for rule in live) and not has_reply(frame):
            live = [rule for rule in live if not rule.is_appended]
        fired = None if None in found else fired_by(live, chance)
        outcome = self.answer(frame, live, fired, chance) if live and fired != [] else None
        if frame is kept:
            return outcome
        if outcome is None:
            return Outcome(
                RequestHeader(1, version, int.from_bytes(frame[8:12], "big"), None), frame
            )
        if not (outcome.frame or outcome.reply or outcome.resets):
            outcome.frame = frame
        return outcome

    def answer(
        self,
        frame: bytes,
        rules: Sequence[ErrorRule],
        fired: Sequence[ErrorRule] | None,
        chance: Chance,
    ) -> Outcome | None:
        """Decode a request, and return its outcome; None: it is unchanged.

        `fired`: the rules that answer it, if that is decided; else `rules` are counted here.
        """
        try:
            header, request = decode_request(memoryview(frame)[_LENGTH_BYTES:])
        except (MalformedFrame, UnsupportedVersion):
            return None
        if any(rule.refusal.topic for rule in rules):
            self.topics.learn()
        return _Judged(header, request, self.topics, chance).under(rules, fired)


def fired_by(rules: Sequence[ErrorRule], chance: Chance) -> list[ErrorRule]:
    """Count the matches of rules that match a request; return the rules that answer it.

    The rules behind one that answers the whole request do not count it.
    """
    fired: list[ErrorRule] = []
    for rule in rules:
        if rule.fires(chance):
            fired.append(rule)
            if not (rule.is_appended and rule.refusal.topic):
                break
    return fired


class _Judged:
    """One decoded request, under its rules in turn."""

    def __init__(
        self, header: RequestHeader, request: Request[Any], topics: Topics, chance: Chance
    ) -> None:
        self._header: Final = header
        self._api: Final = APIS[header.api_key].name
        self._request: Final[Any] = request
        self._topics: Final = topics
        self._chance: Final = chance
        self._outcome: Final = Outcome(header)
        self._is_changed = self._is_refused = False

    def under(
        self, rules: Sequence[ErrorRule], fired: Sequence[ErrorRule] | None
    ) -> Outcome | None:
        """Return the outcome, as `AnswerBook.answer`."""
        if self._api == "Fetch" and self._leaves_session(rules):
            return self._outcome
        for rule in rules if fired is None else fired:
            self._apply(rule, is_fired=fired is not None)
            if self._is_refused or self._outcome.whole is not None:
                break
        return self._result()

    def _leaves_session(self, rules: Sequence[ErrorRule]) -> bool:
        """Make a Fetch name its partitions; return whether it is answered, to that end."""
        request, version = self._request, self._header.api_version
        if version < SESSIONS_SINCE or not any(rule.needs_partitions for rule in rules):
            return False
        if request.session_epoch > _FULL_FETCH:
            error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if (answer := refuse_all(request, self._header.api_key, version, error)) is not None:
                self._outcome.reply = encoded(self._header, answer)
            return True
        if request.session_epoch == _FULL_FETCH:
            request.session_id, request.session_epoch = WITHOUT_SESSION
            self._is_changed = True
        return False

    def _apply(self, rule: ErrorRule, *, is_fired: bool) -> None:
        if rule.is_appended and self._is_without_response:
            return
        if self._is_in_reply(rule.refusal):
            if is_fired or rule.fires(self._chance):
                self._outcome.in_reply.append(rule.refusal)
            return
        errors = self._errors(rule)
        if errors is None or not (is_fired or rule.fires(self._chance)):
            return
        if not rule.refusal.topic:
            self._outcome.whole = errors
            self._is_refused = not rule.is_appended and self._api != "Metadata"
            if self._api == "Metadata" and rule.refusal.error not in AT_THE_TOP:
                self._outcome.whole = None  # the response has the brokers
                self._outcome.errors.append(errors)
                self._request.topics, self._is_changed = [], True
            return
        self._outcome.errors.append(errors)
        if not rule.is_appended:
            self._errors(rule, takes=True)
            self._is_changed = True
            kind = response_class(self._header.api_key)
            self._is_refused = self._api != "Metadata" and not has_entries(kind, self._request)

    @property
    def _is_without_response(self) -> bool:
        return self._api == "Produce" and self._request.acks == 0

    def _is_in_reply(self, refusal: Refusal) -> bool:
        """Return whether a rule matches entries that the broker's response alone may name."""
        request, topic = self._request, refusal.topic
        if self._api == "OffsetFetch":
            groups = [request, *request.groups]
            return bool(topic) and any(group.topics is None for group in groups)
        if self._api not in _NAMES_NO_PARTITION:
            return False
        is_oldest = self._api == "Metadata" and self._header.api_version == 0  # []: all topics
        if request.topics is None or (is_oldest and not (topic and request.topics)):
            return refusal.error not in AT_THE_TOP
        if refusal.partition < 0 and not is_oldest:
            return False
        return self._errors_of(Refusal(refusal.error, topic)) is not None

    def _errors(self, rule: ErrorRule, *, takes: bool = False) -> Response | None:
        if not rule.refusal.topic:
            key, version = self._header.api_key, self._header.api_version
            return refuse_all(self._request, key, version, rule.refusal.error)
        return self._errors_of(rule.refusal, takes=takes)

    def _errors_of(self, refusal: Refusal, *, takes: bool = False) -> Response | None:
        key, version = self._header.api_key, self._header.api_version
        names = self._topics.names
        return refuse_topic(self._request, key, version, refusal, names, takes=takes)

    def _result(self) -> Outcome | None:
        outcome, header = self._outcome, self._header
        if self._is_refused:
            if self._is_without_response:
                outcome.resets = True
            else:
                outcome.reply = encoded(header, _joined(outcome))
            return outcome
        if not self._is_changed:
            return outcome if outcome.changes_reply else None
        if self._api == "Fetch" and outcome.errors:
            self._request.max_wait_ms = 0  # a broker does not wait beside an error
        outcome.frame = b"".join(
            encode_request(
                self._request,
                api_version=header.api_version,
                correlation_id=header.correlation_id,
                client_id=header.client_id,
            )
        )
        return outcome


def _joined(outcome: Outcome) -> Response:
    """Return the response to a request of which nothing is left for the broker."""
    responses: Iterable[Response] = outcome.errors
    if outcome.whole is not None:
        return outcome.whole
    first, rest = outcome.errors[0], islice(responses, 1, None)
    for errors in rest:
        merged(first, errors)
    return first
