"""The rules on requests, applied to the messages of one connection. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from quorumlog.chaos.faults.apis import kafka_api_name
from quorumlog.chaos.faults.links import Plane
from quorumlog.chaos.network.answer_rules import CLIENT_AT, ErrorRule, Outcome, Plan, fired_by
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.chaos.network.request_bytes import client_of, has_reply, without_session
from quorumlog.chaos.network.splitters import HttpSplitter, KafkaSplitter, Message, Piece, Splitter

HELD_MAX_BYTES: Final = 100 * 1024 * 1024  # the default of socket.request.max.bytes
_PLANS_MAX: Final = 1_000
_PENDING_MAX: Final = 10_000  # requests with acks=0 have no response
_HEAD_BYTES: Final = 512  # of a Produce: as far as its acks
_WITH_HEAD: Final = frozenset({"Produce", "Metadata"})
_METADATA_BYTES_MAX: Final = 256 * 1024


class _Pending(NamedTuple):
    """A request whose reply has not begun.

    head: its first bytes, if it may have no reply, or if its reply has names of topics.
    reply: from here; else the broker's, changed by `outcome`.
    """

    number: int
    head: bytes = b""
    reply: bytes = b""
    outcome: Outcome | None = None


class Exchange:
    """The requests of one connection, and their replies.

    `requests` and `replies` split the two directions of the connection; then `shape_requests` and
    `shape_replies` apply the rules with answers to the pieces. Invariants: replies leave in the
    order of the requests; at most HELD_MAX_BYTES of a message are held.
    """

    def __init__(self, plane: Plane, forth: LinkState) -> None:
        """Begin a connection; `forth`: the state of the link that its requests take."""
        is_kafka = plane == "kafka"
        self.requests: Final[Splitter] = (
            KafkaSplitter(kafka_api_name) if is_kafka else HttpSplitter(is_request=True)
        )
        self.replies: Final[Splitter] = (
            KafkaSplitter(None) if is_kafka else HttpSplitter(is_request=False)
        )
        self.is_kafka: Final = is_kafka
        self.resets = False  # the connection ends in the place of a response
        self._forth: Final = forth
        self._unanswered: Final[set[int]] = set()  # requests whose replies are to be lost
        self._client: str | None = None
        self._pending: Final[deque[_Pending]] = deque(maxlen=_PENDING_MAX)
        self._request: Final[list[Piece]] = []  # held until it is whole
        self._message = Message("", 0)  # of the held request
        self._reply: Final[list[Piece]] = []  # held, or a copy of it
        self.waiting = 0  # answers from here among the pending
        self._seen: Final[dict[str, list[int]]] = {}  # the counts of the client's requests, by API
        self._plans: Final[dict[bytes, Plan]] = {}  # by heads from the client id on
        self._head_ends: Final[dict[str, int]] = {}  # of the last new plan of each API
        self._replied: _Pending | None = None  # the request of the reply under way
        self._is_replying = False

    def request_late_s(self, message: Message) -> float | None:
        """Draw the delay of a request; None: it is lost, and so is the rest of the stream."""
        state = self._forth
        if state.is_plain:
            return 0.0
        if state.drops_request(message.api):
            return None
        if state.drops_reply(message.api):
            self._unanswered.add(message.number)
        return state.request_delay_s(message.api)

    def loses_reply(self, message: Message) -> bool:
        """Return whether this reply is lost; the connection is then reset."""
        return message.number in self._unanswered

    # --- rules with answers ---

    def shape_requests(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces for the target; `due_replies` has the answers from here."""
        if not (self._request or self._forth.answers):
            for piece in pieces:
                if piece.message is not None:
                    self._note(piece.message, piece.content)
            return pieces
        passed: list[Piece] = []
        for piece in pieces:
            if piece.message is not None:
                passed += self._begin_request(piece, piece.message)
            elif not self._request:
                passed.append(piece)
            else:
                self._request.append(piece)
                if piece.is_last:
                    passed += self._judged()
        return passed

    def shape_replies(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces for the party that dialled, with the answers from here in between."""
        if not (self._pending or self._replied):
            return pieces
        unmatched = 0 if self._is_replying or self.waiting else self._match_plain(pieces)
        passed = pieces[:unmatched]
        for piece in pieces[unmatched:]:
            if piece.message is not None:
                passed += self._begin_reply(piece, piece.message.number)
            replied = self._replied
            if replied is None:
                passed.append(piece)
            else:
                self._reply.append(Piece(bytes(piece.content)))
                if replied.outcome is None:
                    passed.append(piece)
                if piece.is_last:
                    passed += self._end_reply(replied)
            if piece.is_last:
                self._is_replying, self._replied = False, None
                if self.waiting:
                    passed += self.due_replies()
        return passed

    def _match_plain(self, pieces: list[Piece]) -> int:
        """Match whole replies that pass unchanged with the first requests; return their number."""
        pending = self._pending
        for place, (_, message, is_last) in enumerate(pieces):
            if message is None or not is_last or not pending:
                return place
            number, head, reply, outcome = pending[0]
            if number != message.number or reply or outcome is not None or _is_metadata(head):
                return place
            pending.popleft()
        return len(pieces)

    def due_replies(self) -> list[Piece]:
        """Take the answers from here that no earlier reply precedes."""
        due: list[Piece] = []
        if not self.waiting:
            return due
        pending = self._pending
        while pending and not self._is_replying:
            first = pending[0]
            if first.reply:
                due.append(self._answer(first))
            elif has_reply(first.head):
                break
            pending.popleft()
        return due

    def held_requests(self) -> bytes:
        """Return the bytes of an incomplete request, because no more bytes follow."""
        return _content(self._request)

    def held_replies(self) -> bytes:
        """Return the bytes of an incomplete reply, because no more bytes follow."""
        replied = self._replied
        return _content(self._reply) if replied and replied.outcome is not None else b""

    def _answer(self, pending: _Pending) -> Piece:
        self.waiting -= 1
        return Piece(pending.reply, Message("", pending.number), is_last=True)

    def _note(self, message: Message, content: bytes | memoryview) -> None:
        api, number = message
        head = bytes(content[:_HEAD_BYTES]) if api in _WITH_HEAD else b""
        self._pending.append(_Pending(number, head))

    def _begin_request(self, piece: Piece, message: Message) -> Sequence[Piece]:
        """Apply rules to a request that begins with this piece, or hold it until it is whole."""
        content, state, api = piece.content, self._forth, message.api
        count = self._seen.get(api)
        if count is None:
            if self._client is None:
                self._client = client_of(content[:_HEAD_BYTES])
            count = self._seen[api] = state.book.count_of(api, self._client or "")
        count[0] += 1
        rules = state.concerning(api)
        if rules:
            plan = self._plan(api, content, rules)
            if plan is None or not plan.only_counts:
                return self._begin_answered(piece, message, rules, plan)
            for rule in plan.matching:
                rule.matched += 1
            if plan.session_at:
                content = without_session(content, plan.session_at)
                piece = Piece(content, message, piece.is_last)
        self._note(message, content)
        return (piece,)

    def _begin_answered(
        self, piece: Piece, message: Message, rules: Sequence[ErrorRule], plan: Plan | None
    ) -> Sequence[Piece]:
        """Apply rules to a request that they may answer."""
        content, state = piece.content, self._forth
        if plan is not None and piece.is_last:
            fired = fired_by(plan.matching, state.chance)
            if plan.session_at:
                content = without_session(content, plan.session_at)
                piece = Piece(content, message, is_last=True)
            if not fired:
                self._note(message, content)
                return (piece,)
            frame = bytes(content)
            outcome = state.book.answer(frame, plan.matching, fired, state.chance)
            return self._under(outcome, message, frame)
        if _size(piece) >= HELD_MAX_BYTES or not any(one.is_of_client(content) for one in rules):
            self._note(message, content)
            return (piece,)
        self._message = message
        self._request.append(piece)
        return self._judged() if piece.is_last else ()

    def _plan(
        self, api: str, content: bytes | memoryview, rules: Sequence[ErrorRule]
    ) -> Plan | None:
        """Return the plan for a request, often an earlier request's; None: it has no plan."""
        book = self._forth.book
        plan = self._plans.get(bytes(content[CLIENT_AT : self._head_ends.get(api, 0)]))
        if (
            plan is not None
            and plan.rules is rules
            and plan.changes == book.topics.changes
            and plan.version == content[6] << 8 | content[7]
        ):
            return plan
        head = bytes(content[:_HEAD_BYTES])
        plan = book.plan(head, rules)
        if plan is not None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            self._head_ends[api] = plan.size
            self._plans[head[CLIENT_AT : plan.size]] = plan
        return plan

    def _judged(self) -> Sequence[Piece]:
        """Apply the rules to the held request, which is whole; return the pieces for the target."""
        message, state = self._message, self._forth
        frame = _taken(self._request)
        outcome = state.book.judge(frame, state.concerning(message.api), state.chance)
        return self._under(outcome, message, frame)

    def _under(self, outcome: Outcome | None, message: Message, frame: bytes) -> Sequence[Piece]:
        """Carry out the outcome of a request; return the pieces for the target."""
        if outcome is None:
            self._note(message, frame)
            return (Piece(frame, message, is_last=True),)
        if outcome.resets:
            self.resets = True
            return ()
        if outcome.reply:
            self.waiting += 1
            self._pending.append(_Pending(message.number, b"", outcome.reply))
            return ()
        sent = outcome.frame or frame
        outcome_of_reply = outcome if outcome.changes_reply else None
        self._pending.append(_Pending(message.number, sent[:_HEAD_BYTES], b"", outcome_of_reply))
        return (Piece(sent, message, is_last=True),)

    def _begin_reply(self, piece: Piece, number: int) -> list[Piece]:
        """Find the request of a reply; return the answers from here that precede the reply."""
        before: list[Piece] = []
        self._is_replying, pending = True, self._pending
        if not pending or (
            pending[0].number != number and all(one.number != number for one in pending)
        ):
            return before
        while (first := pending.popleft()).number != number or first.reply:
            if first.reply:
                before.append(self._answer(first))
        is_changed = first.outcome is not None
        if is_changed or _is_metadata(first.head):
            limit = HELD_MAX_BYTES if is_changed else _METADATA_BYTES_MAX
            self._replied = first if _size(piece) < limit else None
        return before

    def _end_reply(self, replied: _Pending) -> list[Piece]:
        """Learn the names of topics in a whole reply; return the reply if it was held."""
        frame, topics, outcome = _taken(self._reply), self._forth.book.topics, replied.outcome
        if _is_metadata(replied.head):
            topics.keep(int.from_bytes(replied.head[6:8], "big"), frame[4:])
        if outcome is None:
            return []
        return [Piece(outcome.changed(frame, topics), Message("", replied.number), is_last=True)]


def _taken(pieces: list[Piece]) -> bytes:
    content = _content(pieces)
    pieces.clear()
    return content


def _content(pieces: list[Piece]) -> bytes:
    return b"".join(piece.content for piece in pieces)


def _size(piece: Piece) -> int:
    """Return the size of the message that begins with this piece, without its length."""
    return int.from_bytes(piece.content[:4], "big")


def _is_metadata(head: bytes) -> bool:
    return head[4:6] == b"\0\3"
