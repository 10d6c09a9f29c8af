"""Every frame of every API and version, split at every byte: the same frame, the same message."""

import random
import struct

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from quorumlog.wire.codec.messages import APIS, UNUSED_APIS
from quorumlog.wire.codec.messages.api_versions import ApiVersionsResponse
from quorumlog.wire.codec.schemas import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from tests.support.wire.records_oracle import random_message
from tests.unit.wire.test_frames import Recorder


def frames(api_key: int) -> list[tuple[RequestHeader, bytes, bytes]]:
    """For each version: the header, a request's frame and a response's."""
    draw = random.Random(api_key)
    made = []
    for version in APIS[api_key].versions:
        header = RequestHeader(api_key, version, draw.getrandbits(31), draw.choice((None, "é")))
        request = random_message(draw, request_class(api_key), version)
        response = random_message(draw, response_class(api_key), version)
        if isinstance(response, ApiVersionsResponse):
            response.error_code = 0  # an answer with error 35 is read in version 0
        asked = b"".join(
            encode_request(
                request,
                api_version=version,
                correlation_id=header.correlation_id,
                client_id=header.client_id,
            )
        )
        made.append((header, asked, b"".join(encode_response(header, response))))
        assert decode_request(asked[4:]) == (header, request)
        answer = decode_response(api_key, version, made[-1][2][4:])
        assert answer == (header.correlation_id, response)
    return made


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_every_frame_may_be_split_at_every_byte(api_key: int) -> None:
    splits = 0
    for _, *pair in frames(api_key):
        for frame in pair:
            follower = struct.pack(">i", 3) + b"end"  # what is behind it is not touched
            for cut in range(len(frame) + 1):
                protocol = Recorder()
                protocol.feed(frame[:cut])
                assert protocol.frames == ([frame[4:]] if cut == len(frame) else [])
                protocol.feed(frame[cut:] + follower)
                assert protocol.frames == [frame[4:], b"end"]
                splits += 1
    assert splits >= 2 * len(APIS[api_key].versions) * 5


def test_every_version_that_kio_knows_of_these_apis_is_among_them() -> None:
    known = {
        (api_key, int(version))
        for api_key, name in api_key_map.items()
        for version, kinds in schema_name_map[name].items()
        if api_key not in UNUSED_APIS
        and (EntityType.request in kinds or EntityType.response in kinds)
    }
    ours = {(api_key, version) for api_key, api in APIS.items() for version in api.versions}
    assert ours == known
    assert (len(APIS), len(UNUSED_APIS), len(ours)) == (77, 12, 278)
