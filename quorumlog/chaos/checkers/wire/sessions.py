"""Rules of fetch sessions (KIP-227).

A response to an incremental fetch leaves out only partitions without news. So a partition that has
records behind the client's position is in one of the next responses, unless others fill them; and a
response has no partition that the session does not have.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from quorumlog.chaos.checkers.wire.appends import Add
from quorumlog.chaos.checkers.wire.ends import KnownEnds
from quorumlog.chaos.checkers.wire.facts import Fetch
from quorumlog.chaos.history.exchanges import INVENTED_SESSION, OUT_OF_TURN
from quorumlog.wire.codec.error_codes import ErrorCode

ROUNDS: Final = 3  # responses that may leave out a partition with records
NO_SESSION: Final = 0


def check_sessions(fetches: Sequence[Fetch], known: KnownEnds, add: Add) -> Iterator[str]:
    """Check the rounds of each session. `known`: the ends that nodes have named."""
    sessions: dict[tuple[int, int], list[Fetch]] = defaultdict(list)
    for one in fetches:
        if one.is_final or not one.exchange.is_answered:
            continue
        if one.error is not None and not one.was_asked:
            note = "the response has a partition that is not in the session"
            add("not-asked-for", note, ("fetched", one.row))
        if one.session_id != NO_SESSION and one.session_epoch > 0 and one.top_error == 0:
            sessions[one.exchange.connection, one.session_id].append(one)
    for rounds in sessions.values():
        yield from _check_session(rounds, known, add)


def _check_session(rounds: Sequence[Fetch], known: KnownEnds, add: Add) -> Iterator[str]:
    """Count the rounds in a row that leave the partition out although it has records."""
    missed: list[Fetch] = []
    for one in sorted(rounds, key=lambda each: each.exchange.place):
        end = known.before(one.exchange)
        has_records = one.was_asked and end is not None and end.offset > one.offset
        if has_records:
            yield "session"
        if not one.was_asked or one.error is not None:
            missed.clear()
        if end is None or not has_records or one.error is not None or not one.has_room:
            continue
        missed.append(one)
        if len(missed) == ROUNDS:
            note = (
                f"{ROUNDS} responses left the partition out at position {one.offset},"
                f" and its end is {end.offset}"
            )
            told = [("left out", each.row) for each in missed]
            add("forgotten-partition", note, (end.kind, end.row), *told)
            missed.clear()


def check_session_errors(fetches: Sequence[Fetch], add: Add) -> Iterator[str]:
    """Check that an invented session, or an epoch out of turn, is refused.

    Such a request has the epoch INVENTED_SESSION, or OUT_OF_TURN in an existing session.
    """
    for one in fetches:
        if one.session_epoch not in {INVENTED_SESSION, OUT_OF_TURN} or not one.exchange.is_answered:
            continue
        yield "session-error"
        expected = {ErrorCode.FETCH_SESSION_ID_NOT_FOUND}
        if one.session_epoch == OUT_OF_TURN:
            expected.add(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if one.top_error not in expected:
            note = f"session {one.session_id}, epoch {one.session_epoch}: error {one.top_error}"
            add("wrong-error", note, ("fetched", one.row))
