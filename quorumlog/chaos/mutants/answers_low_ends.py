"""A node whose every second ListOffsets response for a log's end is 7 too low.

`quorumlog chaos run --mutant low-ends` must end invalid: a log that was said to end at 1,297 does
not end at 1,290 later on.
"""

import sys
from typing import Final

from quorumlog.broker.partitions.log.offset_lookup import LATEST
from quorumlog.broker.server.api import BrokerContext, Handle
from quorumlog.chaos.mutants.consumers import with_handler
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from quorumlog.wire.codec.schemas import RequestHeader

_TOO_LOW_BY: Final = 7


def answering_low(real: Handle) -> Handle:
    """Make the mutant's handler from the real one."""
    asked = 0

    async def handle(
        context: BrokerContext, header: RequestHeader, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        nonlocal asked
        response: ListOffsetsResponse = await real(context, header, request)  # type: ignore[misc]  # it is a coroutine
        asked_for = {
            (topic.name, partition.partition_index): partition.timestamp
            for topic in request.topics
            for partition in topic.partitions
        }
        asked += 1
        for topic in response.topics:
            for partition in topic.partitions:
                timestamp = asked_for[topic.name, partition.partition_index]
                if timestamp == LATEST and asked % 2 == 0 and partition.offset > _TOO_LOW_BY:
                    partition.offset -= _TOO_LOW_BY
        return response

    return handle


if __name__ == "__main__":
    handlers = with_handler(ListOffsetsRequest.API_KEY, answering_low)
    sys.exit(main(sys.argv[1:], Substitutes(handlers=handlers)))
