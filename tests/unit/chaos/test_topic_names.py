"""The names of topics that forwarders learn from Metadata responses."""

import pytest

from quorumlog.chaos.network import topic_names
from quorumlog.chaos.network.topic_names import Topics
from quorumlog.wire.codec.messages.metadata import MetadataResponse, MetadataResponseTopic
from quorumlog.wire.codec.schemas import RequestHeader, encode_response

METADATA, VERSION = 3, 12


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def response(number: int) -> bytes:
    """Return a Metadata response with the topic `t<number>`, without its length."""
    topic = MetadataResponseTopic(name=f"t{number}", topic_id=id_of(number))
    header = RequestHeader(METADATA, VERSION, number, "c")
    return b"".join(encode_response(header, MetadataResponse(topics=[topic])))[4:]


def test_the_topic_of_a_client_that_asked_long_ago_is_known() -> None:
    topics = Topics()
    for number in range(1, 101):
        topics.keep(VERSION, response(number))
    assert topics.are_in(b"a request with " + id_of(1), "t1")
    assert len(topics.names) == 100


def test_the_topics_seen_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_names, "_NAMES_MAX", 3)
    monkeypatch.setattr(topic_names, "_METADATA_MAX", 1)
    topics = Topics()
    for number in (1, 2, 1, 3, 1, 4, 1, 5):
        topics.keep(VERSION, response(number))
        topics.learn()
    assert [*topics.names.values()] == ["t4", "t1", "t5"]
