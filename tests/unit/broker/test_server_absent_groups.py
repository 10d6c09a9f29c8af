"""Requests of share groups and streams groups are refused as by Kafka with the features off.

The expected responses are those of Apache Kafka 4.3.1, formatted with `share.version` 0 and
`streams.version` 0. Where Kafka's message is null or only names the code, a sentence is sent here.
"""

from dataclasses import replace
from errno import EMFILE
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.handlers.registry import HANDLERS, RARE, handlers_of
from quorumlog.wire.codec import schemas
from quorumlog.wire.codec.message import Struct
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.schemas import request_class
from quorumlog.wire.io.connection import KafkaConnection
from quorumlog.wire.io.connection_errors import ConnectionLost
from tests.support.broker.authorized import built
from tests.support.groups.asking import asking

Fields = dict[str, Any]

TOPIC_ID = b"T" * 16
WHOLE: Fields = {"error_code": 35}  # UNSUPPORTED_VERSION
OF_GROUP: Fields = WHOLE | {"group_id": "g"}
UNDESCRIBED: Fields = {
    **OF_GROUP,
    **{"group_state": "", "group_epoch": 0, "assignment_epoch": 0, "members": []},
    "authorized_operations": -2147483648,
}
WITHOUT_RECORDS: Fields = {
    **WHOLE,
    **{"acquisition_lock_timeout_ms": 0, "responses": [], "node_endpoints": []},
}
SHARE_MEMBER: Fields = {"group_id": "g", "member_id": "m"}
STREAMS_MEMBER: Fields = {
    **SHARE_MEMBER,
    **{"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], "client_tags": []},
}

REFUSED: dict[str, tuple[Fields, Fields]] = {  # the request, and Kafka's response
    "ShareGroupHeartbeat": (
        SHARE_MEMBER,
        {**WHOLE, "member_id": None, "member_epoch": 0, "heartbeat_interval_ms": 0},
    ),
    "ShareGroupDescribe": (
        {"group_ids": ["g"], "include_authorized_operations": True},
        {"groups": [UNDESCRIBED | {"assignor_name": ""}]},
    ),
    "ShareFetch": (SHARE_MEMBER, WITHOUT_RECORDS),
    "ShareAcknowledge": (SHARE_MEMBER, WITHOUT_RECORDS),
    "StreamsGroupHeartbeat": (
        STREAMS_MEMBER,
        {
            **WHOLE,
            **{"member_id": "", "member_epoch": 0, "heartbeat_interval_ms": 0},
            **{"acceptable_recovery_lag": 0, "task_offset_interval_ms": 0, "status": []},
            **{"active_tasks": None, "standby_tasks": None, "warmup_tasks": None},
            **{"endpoint_information_epoch": 0, "partitions_by_user_endpoint": None},
        },
    ),
    "StreamsGroupDescribe": (
        {"group_ids": ["g"], "include_authorized_operations": True},
        {"groups": [UNDESCRIBED | {"topology": None}]},
    ),
    "DescribeShareGroupOffsets": (
        {"groups": [{"group_id": "g", "topics": [{"topic_name": "t", "partitions": [0]}]}]},
        {"groups": [OF_GROUP | {"topics": []}]},
    ),
    "AlterShareGroupOffsets": ({"group_id": "g"}, WHOLE | {"responses": []}),
    "DeleteShareGroupOffsets": ({"group_id": "g"}, WHOLE | {"responses": []}),
}

READ: Fields = {"state_epoch": 0, "start_offset": 0}
STATES: dict[str, tuple[str, Fields]] = {  # the verb of the message, and more fields
    "InitializeShareGroupState": ("initialize share group state", {}),
    "ReadShareGroupState": ("read share group state", READ | {"state_batches": []}),
    "WriteShareGroupState": ("write share group state", {}),
    "DeleteShareGroupState": ("delete share group state", {}),
    "ReadShareGroupStateSummary": (
        "read share group state summary",
        READ | {"leader_epoch": 0, "delivery_complete_count": -1},
    ),
}
KEYS = {api.name: key for key, api in APIS.items()}


def requested(api: str, fields: Fields) -> Any:
    return built(request_class(KEYS[api]), fields, TOPIC_ID)


def versions(api: str) -> range:
    handler = HANDLERS[KEYS[api]]
    return range(handler.min_version, handler.max_version + 1)


def require(response: Struct, expected: Fields) -> None:
    """Compare the expected fields, and require a sentence with each error."""
    for name, value in expected.items():
        found = getattr(response, name)
        if isinstance(value, list) and value:
            for inner, fields in zip(found, value, strict=True):
                require(inner, fields)
        else:
            assert found == value, name
    if "error_code" in expected and "error_message" not in expected:
        said = getattr(response, "error_message", "")
        assert "KIP-932" in said or "KIP-1071" in said


@pytest.mark.parametrize("api", REFUSED)
async def test_a_group_of_an_absent_type_is_refused_in_each_version(
    api: str, tmp_path: Path
) -> None:
    fields, expected = REFUSED[api]
    async with asking(tmp_path) as (_, connection):
        assert connection.api_versions[KEYS[api]] == versions(api)
        for version in versions(api):
            require(await connection.send(requested(api, fields), version=version), expected)


@pytest.mark.parametrize("api", STATES)
async def test_no_broker_is_the_coordinator_of_a_share_partition(api: str, tmp_path: Path) -> None:
    verb, more = STATES[api]
    partitions = [{"partition": 1}, {"partition": 1}, {"partition": 0}]
    topics = [{"topic_id": TOPIC_ID, "partitions": partitions}, {"topic_id": bytes(16)}]
    message = f"Unable to {verb}: This is not the correct coordinator."
    refusal = more | {"error_code": 16, "error_message": message}
    answered = [{"partition": 1, **refusal}, {"partition": 0, **refusal}]
    expected = {"results": [{"topic_id": TOPIC_ID, "partitions": answered}]}
    async with asking(tmp_path) as (_, connection):
        for version in versions(api):
            request = requested(api, {"group_id": "g", "topics": topics})
            require(await connection.send(request, version=version), expected)
            nothing = requested(api, {"group_id": "", "topics": topics})
            assert (await connection.send(nothing, version=version)).results == []


def test_a_handler_of_a_rare_api_has_the_versions_of_its_messages() -> None:
    """Until the first request, the registry takes the versions from the messages."""
    for module, keys in RARE.items():
        loaded = handlers_of(module)
        assert loaded.keys() == {*keys}
        for key, handler in loaded.items():
            assert replace(handler, handle=HANDLERS[key].handle) == HANDLERS[key]


@pytest.mark.parametrize(
    "part",
    [
        "quorumlog.wire.codec.schemas.request_class",
        "quorumlog.broker.handlers.registry.import_module",
    ],
)
async def test_an_import_that_fails_closes_the_connection_and_is_repeated(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as of a message or a handler, while the broker has no free file handle."""
    api = "StreamsGroupDescribe"
    request = requested(api, {"group_ids": ["g"]})

    def refuse(_: object) -> None:
        raise OSError(EMFILE, "Too many open files")

    schemas._request_codec.cache_clear()
    handlers_of.cache_clear()
    async with asking(tmp_path) as (broker, connection):
        with monkeypatch.context() as patched:
            patched.setattr(part, refuse)
            with pytest.raises(ConnectionLost):
                await connection.send(request)
        assert "Too many open files" in caplog.text
        again = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
        try:
            require(await again.send(request), REFUSED[api][1])
        finally:
            await again.close()
