"""An oracle reads the requests and responses of a connection from its bytes."""

import pytest

from quorumlog.chaos.simulation.oracles.exchanges import END_TXN, READ_APIS, Conversation, Exchange
from quorumlog.wire.codec.message import Request, Response
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.schemas import RequestHeader, encode_request, encode_response


class Connection:
    """A connection whose bytes come in pieces of one size."""

    def __init__(self, size: int) -> None:
        self.asked: list[Exchange] = []
        self.answered: list[Exchange] = []
        wants = READ_APIS.__contains__
        self.conversation = Conversation(4, wants, self.asked.append, self.answered.append)
        self._size = size

    def request(self, number: int, request: Request) -> None:  # type: ignore[type-arg]  # any
        frame = b"".join(
            encode_request(request, api_version=3, correlation_id=number, client_id="p1")
        )
        for place in range(0, len(frame), self._size):
            self.conversation.arrives(frame[place : place + self._size])

    def response(self, number: int, api_key: int, response: Response) -> None:
        frame = b"".join(encode_response(RequestHeader(api_key, 3, number, "p1"), response))
        for place in range(0, len(frame), self._size):
            self.conversation.leaves(frame[place : place + self._size])


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_wanted_requests_are_read_and_others_are_skipped(size: int) -> None:
    connection = Connection(size)
    connection.request(1, HeartbeatRequest(group_id="readers"))
    connection.request(2, EndTxnRequest(transactional_id="payer", committed=True))
    connection.response(1, HeartbeatRequest.API_KEY, HeartbeatResponse())
    assert [one.request.transactional_id for one in connection.asked] == ["payer"]
    assert connection.answered == []
    connection.response(2, END_TXN, EndTxnResponse(error_code=3))
    assert [one.response.error_code for one in connection.answered] == [3]
    assert connection.answered == connection.asked
    assert connection.asked[0].node_id == 4


def test_bytes_that_are_no_frame_end_the_reading() -> None:
    connection = Connection(1_000)
    connection.conversation.arrives(b"\xff" * 20)
    connection.request(1, EndTxnRequest(transactional_id="payer"))
    assert connection.asked == []
