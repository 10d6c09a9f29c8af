"""The rules of the protocol: each finds its broken sequence of responses, and no sound one."""

from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.checkers.wire.checker import ANOMALIES
from quorumlog.chaos.history.exchanges import FAR_AHEAD, FAR_OFFSET, INVENTED_SESSION, OUT_OF_TURN
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.chaos.wire_histories import LEADER_EPOCH, WireHistory

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD_PRODUCER = ErrorCode.INVALID_PRODUCER_EPOCH
UNKNOWN_EPOCH = ErrorCode.UNKNOWN_LEADER_EPOCH
FENCED_EPOCH = ErrorCode.FENCED_LEADER_EPOCH
NO_SESSION = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
WRONG_EPOCH = ErrorCode.INVALID_FETCH_SESSION_EPOCH
ROUND = (77, 3)  # a session and its epoch


def wired() -> WireHistory:
    return WireHistory()


def written() -> WireHistory:
    """Two batches of producer 7: the values 0 and 1 at 0, 2 at 2; the next sequence is 3."""
    return wired().produce([0, 1], 0, producer=(7, 0, 0)).produce([2], 2, producer=(7, 0, 2))


# --- appends ---


def test_acknowledged_records_in_the_log_are_valid() -> None:
    history = written().produce([3], 3, acks=1).produce([4], acks=0, error=None, is_received=True)
    verdict = history.fetch(0, [0, 1], end=5).look_up(5).final([0, 1, 2, 3, 4]).verdict()
    assert verdict.valid is True, verdict.as_json()
    judged = {name: verdict.figures[name] for name in ("acks_all", "acks_1", "acks_0", "sequence")}
    assert judged == {"acks_all": 2, "acks_1": 1, "acks_0": 1, "sequence": 2}


@pytest.mark.parametrize("log", [[0, 1], [0, 1, 9], [0, 2, 1]])
def test_acks_all_is_in_the_log_at_its_offset(log: list[int]) -> None:
    assert "lost-append" in written().produce([9], error=None).final(log).found()


@pytest.mark.parametrize(
    ("acks", "epoch", "is_received", "found"),
    [
        (1, LEADER_EPOCH, False, {"lost-append"}),
        (1, LEADER_EPOCH - 1, False, set()),  # the leader changed
        (1, -1, False, set()),  # old metadata have no epoch
        (0, LEADER_EPOCH, True, {"lost-append"}),
        (0, LEADER_EPOCH, False, set()),  # perhaps the broker never received it
        (0, LEADER_EPOCH - 1, True, set()),
    ],
)
def test_lesser_acks_may_be_lost_with_the_leader_alone(
    acks: int, epoch: int, is_received: bool, found: set[str]
) -> None:
    history = written()
    history.produce(
        [5],
        3 if acks else -1,
        acks=acks,
        error=0 if acks else None,
        leader_epoch=epoch,
        is_received=is_received,
    )
    assert history.final([0, 1, 2]).found() == found


def test_a_gap_must_be_refused() -> None:
    history = written().produce([3], 3, producer=(7, 0, 8))
    assert history.final([0, 1, 2, 3]).found() == {"gap-accepted"}


@pytest.mark.parametrize("error", [TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_a_gap_that_was_appended_and_then_failed_is_found(error: int) -> None:
    history = written().produce([3], producer=(7, 0, 8), error=error)
    assert history.final([0, 1, 2, 3]).found() == {"gap-accepted"}


@pytest.mark.parametrize("error", [OUT_OF_ORDER, NOT_LEADER, ErrorCode.NOT_ENOUGH_REPLICAS, None])
def test_a_refused_gap_is_right(error: int | None) -> None:
    history = written().produce([3], producer=(7, 0, 8), error=error)
    assert history.final([0, 1, 2]).found() == set()


def test_a_refused_gap_must_not_be_in_the_log() -> None:
    history = written().produce([3], producer=(7, 0, 8), error=OUT_OF_ORDER)
    assert history.final([0, 1, 2, 3]).found() == {"refused-in-log"}


def test_a_gap_has_its_own_error() -> None:
    history = written().produce([3], producer=(7, 0, 8), error=ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert history.final([0, 1, 2]).found() == {"wrong-error"}


def test_nothing_is_known_behind_an_uncertain_batch() -> None:
    history = written().produce([3], producer=(7, 0, 3), error=TIMED_OUT)
    history.produce([4], 3, producer=(7, 0, 4))  # a gap, if the batch before is not in the log
    assert history.final([0, 1, 2, 4]).found() == set()


def test_a_batch_is_judged_behind_others_on_its_connection() -> None:
    piped: dict[str, Any] = {"connection": 1, "piped": True}
    history = wired().produce([0], 0, producer=(7, 0, 0))
    history.produce([1], 1, producer=(7, 0, 1), **piped)
    history.produce([2], 2, producer=(7, 0, 9), **piped)
    assert history.final([0, 1, 2]).found() == {"gap-accepted"}


def test_a_producer_without_records_may_begin_anywhere() -> None:
    history = wired().produce([0], 0, producer=(7, 0, 40))
    assert history.final([0]).found() == set()


def test_the_next_sequence_must_be_accepted() -> None:
    history = written().produce([3], producer=(7, 0, 3), error=OUT_OF_ORDER)
    assert history.final([0, 1, 2]).found() == {"sequence-refused"}


@pytest.mark.parametrize(
    ("offset", "error", "found"),
    [
        (2, 0, set()),
        (-1, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, set()),
        (-1, TIMED_OUT, set()),
        (3, 0, {"repeat-elsewhere"}),
        (-1, OUT_OF_ORDER, {"wrong-error"}),
        (-1, OLD_PRODUCER, {"wrong-error"}),
    ],
)
def test_a_repeat_is_answered_with_its_first_offset(
    offset: int, error: int, found: set[str]
) -> None:
    history = written().produce([2], offset, producer=(7, 0, 2), error=error)
    log = [0, 1, 2, 2] if offset == 3 else [0, 1, 2]
    assert history.final(log).found() - {"record-twice", "lost-append"} == found


@pytest.mark.parametrize(
    ("offset", "error", "found"),
    [
        (1, 0, set()),  # its own offset, before the batches behind it
        (-1, TIMED_OUT, set()),
        (5, 0, {"repeat-elsewhere", "lost-append"}),
        (0, 0, {"repeat-elsewhere", "lost-append"}),
        (-1, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, {"wrong-error"}),
    ],
)
def test_a_batch_that_timed_out_may_be_repeated_behind_acknowledged_batches(
    offset: int, error: int, found: set[str]
) -> None:
    """The batches behind it, sent before its response, were accepted: so it is in the log."""
    piped: dict[str, Any] = {"connection": 1, "piped": True}
    history = wired().produce([0], 0, producer=(7, 0, 0))
    history.produce([1], producer=(7, 0, 1), error=TIMED_OUT, **piped)
    history.produce([2], 2, producer=(7, 0, 2), **piped)
    history.produce([3, 4], 3, producer=(7, 0, 3), **piped)
    history.produce([1], offset, producer=(7, 0, 1), error=error)
    assert history.final([0, 1, 2, 3, 4]).found() == found


def test_a_repeat_behind_five_later_batches_may_be_out_of_order() -> None:
    history = written()
    for value in range(3, 8):
        history.produce([value], value, producer=(7, 0, value))
    history.produce([0, 1], producer=(7, 0, 0), error=OUT_OF_ORDER)
    assert history.final([*range(8)]).found() == set()


def test_a_repeated_record_is_in_the_log_once() -> None:
    history = written().produce([2], 2, producer=(7, 0, 2))
    assert history.final([0, 1, 2, 2]).found() == {"record-twice"}


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (OLD_PRODUCER, set()),
        (NOT_LEADER, set()),
        (0, {"stale-producer-accepted"}),
        (OUT_OF_ORDER, {"wrong-error"}),
    ],
)
def test_an_old_producer_epoch_is_refused(error: int, found: set[str]) -> None:
    history = written().produce([3], 3, producer=(7, 1, 0))
    history.produce([4], 4 if error == 0 else -1, producer=(7, 0, 3), error=error)
    assert history.final([0, 1, 2, 3, 4][: 5 if error == 0 else 4]).found() == found


def test_a_new_producer_epoch_begins_at_0() -> None:
    history = written().produce([3], 3, producer=(7, 1, 3))
    assert history.final([0, 1, 2, 3]).found() == {"gap-accepted"}


def test_a_record_that_nobody_sent_is_found() -> None:
    assert wired().produce([0], 0).final([0, 66]).found() == {"never-sent"}


@pytest.mark.parametrize(
    ("digest", "part"),
    [("9:2:3:4", "key"), ("1:9:3:4", "headers"), ("1:2:9:9", "timestamp, value")],
)
def test_all_parts_of_a_record_come_back(digest: str, part: str) -> None:
    verdict = wired().produce([0], 0).final([0], digest=digest).verdict()
    assert [result.name for result in verdict.results] == ["changed-record"]
    assert verdict.results[0].witnesses[0]["note"] == f"offset 0: {part} differ"


# --- the end ---


def test_an_acknowledgement_before_the_commit_is_found() -> None:
    history = wired().produce([0, 1], 0).look_up(1, connection=2)
    assert history.final([0, 1]).found() == {"acknowledged-early"}
    history = wired().produce([0, 1], 0).fetch(0, [0], end=1, connection=2)
    assert history.final([0, 1]).found() == {"acknowledged-early"}


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"node": 2, "connection": 2},  # a replaced leader may not know yet
        {"connection": 2, "since_ns": 1_600},  # the process may be another one
    ],
)
def test_another_process_may_be_behind(elsewhere: dict[str, Any]) -> None:
    assert wired().produce([0, 1], 0).look_up(1, **elsewhere).final([0, 1]).found() == set()


def test_a_request_sent_before_the_acknowledgement_proves_nothing() -> None:
    history = wired().produce([0, 1], 0).look_up(0, connection=2, piped=True)
    assert history.final([0, 1]).found() == set()


def test_an_end_that_goes_back_is_found() -> None:
    history = wired().produce([0, 1, 2], 0).look_up(5).look_up(4)
    assert history.final([0, 1, 2, *range(100, 104)]).found() >= {"end-went-back"}
    piped = wired().produce([0], 0, acks=1).look_up(1).fetch(0, end=0, piped=True)
    assert piped.final([0]).found() == {"end-went-back"}


def test_an_end_that_nobody_can_read_is_found() -> None:
    assert wired().produce([0], 0).look_up(3).final([0]).found() == {"end-too-high"}


# --- reads ---


@pytest.mark.parametrize("spans", [[(3, 4)], [(0, 1), (3, 4)]])
def test_a_fetch_leaves_out_no_offset(spans: list[tuple[int, int]]) -> None:
    assert wired().fetch(1, spans=spans).found() == {"fetch-skips"}


def test_a_fetch_may_begin_within_a_batch() -> None:
    history = wired().produce([0, 1, 2], 0).fetch(1, [0, 1, 2], first=0, end=3)
    assert history.final([0, 1, 2]).found() == set()


def test_a_fetch_ends_at_the_high_watermark() -> None:
    history = wired().produce([0, 1], 0, acks=1).fetch(0, [0, 1], end=1)
    assert history.final([0, 1]).found() == {"uncommitted-read"}


def test_a_record_that_was_read_stays() -> None:
    history = wired().produce([0], error=None).produce([1], error=None).fetch(0, [0], end=1)
    assert history.final([1]).found() == {"read-vanished"}


def test_an_unreadable_batch_is_found() -> None:
    assert wired().fetch(0, corrupt="the checksum differs").found() == {"corrupt-batch"}


def test_an_offset_far_behind_the_end_is_out_of_range() -> None:
    assert wired().fetch(FAR_OFFSET).found() == {"out-of-range-accepted"}
    assert wired().fetch(FAR_OFFSET, error=ErrorCode.OFFSET_OUT_OF_RANGE).found() == set()


@pytest.mark.parametrize(
    ("epoch", "error", "found"),
    [
        (4, 0, {"stale-epoch-accepted"}),
        (4, UNKNOWN_EPOCH, {"wrong-error"}),
        (4, FENCED_EPOCH, set()),
        (4, NOT_LEADER, set()),
        (5 + FAR_AHEAD, 0, {"unknown-epoch-accepted"}),
        (5 + FAR_AHEAD, FENCED_EPOCH, {"wrong-error"}),
        (5 + FAR_AHEAD, UNKNOWN_EPOCH, set()),
    ],
)
def test_another_leader_epoch_is_refused(epoch: int, error: int, found: set[str]) -> None:
    lookups = wired().look_up(0, asked_epoch=5).look_up(0, asked_epoch=epoch, error=error)
    assert lookups.found() == found
    fetches = wired().fetch(0, asked_epoch=5).fetch(0, asked_epoch=epoch, error=error)
    assert fetches.found() == found


def test_an_old_epoch_is_unknown_to_a_leader_that_has_not_confirmed_a_newer_one() -> None:
    history = wired().look_up(0, asked_epoch=5, error=UNKNOWN_EPOCH)
    assert history.look_up(0, asked_epoch=4).found() == set()


def test_versions_give_equal_answers() -> None:
    lookups = wired().look_up(3, timestamp=0, pair=1, version=1)
    assert lookups.look_up(4, timestamp=0, pair=1, version=7).found() == {"versions-differ"}
    offsets = wired().group_offset(3, version=1).group_offset(-1, version=8)
    assert offsets.found() == {"versions-differ"}
    fetches = wired().produce([0, 1], 0).fetch(0, [0, 1], end=2, pair=1)
    fetches.fetch(0, [0, 1], end=2, pair=1, digest="1:2:9:4")
    assert fetches.final([0, 1]).found() == {"versions-differ", "changed-record"}


def test_answers_that_may_differ_are_not_compared() -> None:
    history = wired().look_up(-1, timestamp=0, pair=1).look_up(0, timestamp=0, pair=1)
    history.fetch(0, pair=2).fetch(0, [0], pair=2)
    history.group_offset(-1, error=16, pair=4).group_offset(4, pair=4)
    history.look_up(3, timestamp=0, pair=3, error=NOT_LEADER).look_up(4, timestamp=0, pair=3)
    assert history.produce([0], 0).found() == set()


# --- offsets of a group ---


def test_a_committed_offset_is_returned() -> None:
    history = wired().commit(4).group_offset(4, pair=1)
    assert history.commit(5, error=16).group_offset(4, pair=2).found() == set()
    assert wired().commit(4).group_offset(3).found() == {"committed-offset-lost"}
    assert wired().commit(4).commit(5).group_offset(4).found() == {"committed-offset-lost"}
    elsewhere = wired().commit(4, connection=2).group_offset(3)  # perhaps another coordinator
    assert elsewhere.found() == set()


def test_a_ghost_commits_nothing() -> None:
    history = wired().commit(4).commit(9, is_ghost=True, error=25).group_offset(4)
    assert history.found() == set()
    history = wired().commit(4).commit(9, is_ghost=True).group_offset(4)
    assert history.found() == {"ghost-commit-accepted"}


# --- sessions ---


def rounds(count: int, **last: Any) -> WireHistory:
    """A partition with three records behind its position, left out by so many responses."""
    history = wired().produce([0, 1, 2], 0)
    for _ in range(count - 1):
        history.fetch(0, error=None, session=ROUND)
    return history.fetch(0, **{"error": None, "session": ROUND, **last})


def test_a_partition_with_records_is_in_one_of_three_responses() -> None:
    assert rounds(3).final([0, 1, 2]).found() == {"forgotten-partition"}
    assert rounds(2).final([0, 1, 2]).found() == set()


@pytest.mark.parametrize(
    "last",
    [
        {"has_room": False},  # other partitions fill the response
        {"error": NOT_LEADER},
        {"was_asked": False},  # the client has forgotten it
        {"offset": 3},  # nothing is behind it
        {"node": 2, "connection": 2},  # another session
    ],
)
def test_a_partition_may_be_left_out_for_a_reason(last: dict[str, Any]) -> None:
    history = rounds(2)
    history.fetch(**{"offset": 0, "error": None, "session": ROUND, **last})
    assert history.final([0, 1, 2]).found() == set()


def test_a_response_has_no_partition_that_was_forgotten() -> None:
    assert wired().fetch(0, session=ROUND, was_asked=False).found() == {"not-asked-for"}


@pytest.mark.parametrize(
    ("session", "error", "found"),
    [
        ((9, INVENTED_SESSION), NO_SESSION, set()),
        ((9, INVENTED_SESSION), 0, {"wrong-error"}),
        ((9, INVENTED_SESSION), WRONG_EPOCH, {"wrong-error"}),
        ((9, OUT_OF_TURN), WRONG_EPOCH, set()),
        ((9, OUT_OF_TURN), NO_SESSION, set()),
        ((9, OUT_OF_TURN), 0, {"wrong-error"}),
    ],
)
def test_a_session_that_does_not_exist_is_refused(
    session: tuple[int, int], error: int, found: set[str]
) -> None:
    history = wired().fetch(0, session=session, top_error=error, error=None, was_asked=False)
    assert history.found() == found


# --- the verdict ---


def test_a_response_has_each_partition_of_its_request() -> None:
    missing = {"no-answer"}
    assert wired().look_up(-1, error=None).found() == missing
    assert wired().fetch(0, error=None).found() == missing
    assert wired().fetch(0, error=None, session=(7, 0)).found() == missing
    assert wired().fetch(0, error=None, session=(7, 1)).found() == set()
    assert wired().fetch(0, error=None, top_error=NO_SESSION, session=(7, 0)).found() == set()
    assert wired().look_up(-1, error=None, answered=False).found() == set()


def test_bytes_that_are_no_response_are_found() -> None:
    assert wired().malformed("a response to no request").found() == {"malformed-response"}


def test_a_history_without_judged_responses_is_unknown() -> None:
    verdict = wired().produce([0], error=None).final([]).verdict()
    assert verdict.valid == "unknown"
    assert "no acks=all was answered" in verdict.unknown_because


def test_a_log_that_was_not_read_to_its_end_is_unknown() -> None:
    verdict = written().fetch(0, [0, 1], end=3).look_up(3).verdict()
    assert verdict.valid == "unknown"
    assert any("final reads" in reason for reason in verdict.unknown_because)


def test_each_anomaly_has_a_test() -> None:
    text = Path(__file__).read_text()
    assert [one.name for one in ANOMALIES if f'"{one.name}"' not in text] == []
