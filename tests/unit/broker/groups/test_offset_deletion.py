"""OffsetDelete: what may be deleted of a group, and when it counts."""

from collections.abc import Sequence

import pytest

from quorumlog.broker.groups.core.requests import CommitResult, DeleteOffsets
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from quorumlog.wire.codec.schemas import encode_message
from tests.support.groups.coordination import T0, Coordination, commit, join, leave, sync

DELETE = DeleteOffsets(group_id="g", partitions=(T0,))


def subscription(*topics: str, version: int = 3) -> bytes:
    message = ConsumerProtocolSubscription(topics=[*topics], rack_id="r")
    body = b"".join(encode_message(message, version))
    return version.to_bytes(2, "big") + body


def stable(metadata: Sequence[bytes], protocol_type: str = "consumer") -> Coordination:
    """Return a group with an offset in `t`, and a member for each of these."""
    group = Coordination()
    group.answer(commit(5))
    names = [f"m{number}" for number, _ in enumerate(metadata)]
    for name, data in zip(names, metadata, strict=True):
        protocols = (("range", data),)
        group.ask(join(new_member_id=name, protocol_type=protocol_type, protocols=protocols))
    group.tick(200)
    for name in names:
        group.ask(sync(name, 1))
    group.commit_writes()
    return group


def outcome(group: Coordination) -> ErrorCode:
    result = group.answer(DELETE)
    assert isinstance(result, CommitResult)
    return result.partitions.get(T0, result.error_code)


def has_offset(group: Coordination) -> bool:
    return group.coordinator.fetch_offsets("g", [T0])[T0] is not None


def test_an_offset_of_nobody_is_deleted_once_that_is_committed() -> None:
    group = Coordination()
    group.answer(commit(5))
    request_id = group.ask(DELETE)
    assert (request_id in group.replies, has_offset(group)) == (False, True)
    group.commit_writes()
    expected = CommitResult(error_code=ErrorCode.NONE, partitions={T0: ErrorCode.NONE})
    assert group.replies[request_id] == expected
    assert not has_offset(group)
    assert not has_offset(group.reloaded())


def test_a_deletion_that_cannot_be_written_deletes_nothing() -> None:
    group = Coordination()
    group.answer(commit(5))
    request_id = group.ask(DELETE)
    group.fail_write()
    assert group.replies[request_id] == DELETE.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert has_offset(group)


def test_an_unknown_group_has_no_offsets_to_delete() -> None:
    group = Coordination()
    assert group.answer(DELETE) == DELETE.refuse(ErrorCode.GROUP_ID_NOT_FOUND)


def test_where_there_is_no_offset_nothing_is_written() -> None:
    group = stable([subscription("other")])
    assert outcome(group) is ErrorCode.NONE
    request_id = group.ask(DELETE)
    assert (group.writes, request_id in group.replies) == ([], True)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_offset_that_a_member_goes_by_stays(version: int) -> None:
    group = stable([subscription("other", version=version), subscription("x", "t")])
    assert outcome(group) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert has_offset(group)
    group.answer(leave("m1"))
    group.tick(3000)  # members that do not come back are removed
    assert outcome(group) is ErrorCode.NONE
    assert not has_offset(group)


def test_a_subscription_that_names_a_newer_version_than_it_has_is_read() -> None:
    group = stable([b"\0\1" + subscription("other", version=0)[2:]])
    assert outcome(group) is ErrorCode.NONE


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\0\0\0\0\5", b"\0\0\0\0\0\1\0\1\xff"])
def test_of_a_member_that_cannot_be_read_every_offset_stays(metadata: bytes) -> None:
    group = stable([subscription("other"), metadata])
    assert outcome(group) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert has_offset(group)


def test_of_a_group_that_has_no_generation_yet_every_offset_stays() -> None:
    group = Coordination()
    group.answer(commit(5))
    group.ask(join(protocols=(("range", subscription("other")),)))
    assert outcome(group) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_of_a_group_of_another_protocol_type_nothing_is_deleted_while_it_has_members() -> None:
    group = stable([subscription("other")], protocol_type="connect")
    assert group.answer(DELETE) == DELETE.refuse(ErrorCode.NON_EMPTY_GROUP)
    group.answer(leave("m0"))
    assert outcome(group) is ErrorCode.NONE


def test_a_group_stays_when_its_last_offset_goes() -> None:
    group = stable([subscription("other")])
    group.answer(leave("m0"))
    assert outcome(group) is ErrorCode.NONE
    assert group.reloaded().coordinator.groups["g"].generation_id == 2
