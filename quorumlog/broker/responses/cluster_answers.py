"""Changes of the cluster's metadata: their outcomes, once this broker's image has the changes."""

from quorumlog.broker.controller_requests.image_watch import SEEN_HERE_MS
from quorumlog.broker.responses.controller_answers import shortened, unanswered
from quorumlog.broker.server.api import BrokerContext
from quorumlog.metadata_quorum.cluster_changes import ClusterChange, Outcome, parts_of
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.wire.codec.error_codes import ErrorCode


async def changed_cluster(
    context: BrokerContext, change: ClusterChange, *, doubt: str
) -> list[Outcome]:
    """Return an outcome per part of the change, with messages that fit their fields.

    It waits until this broker's image has the change, at most SEEN_HERE_MS after the commit.
    `doubt`: the message about the possible effect, if no controller has answered.
    """
    try:
        outcomes = await context.controller.change_cluster(change)
    except ControllerUnavailable as error:
        code, message = unanswered(error, doubt)
        return [Outcome(error_code=code, error_message=message)] * parts_of(change)
    if outcomes.end_offset >= 0:
        await context.metadata.wait_until(
            lambda image: image.end_offset >= outcomes.end_offset, timeout_ms=SEEN_HERE_MS
        )
    return [
        one
        if one.error_code is ErrorCode.NONE
        else Outcome(error_code=one.error_code, error_message=shortened(one.error_message))
        for one in outcomes.results
    ]
