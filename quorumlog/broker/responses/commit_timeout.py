"""The limit of a client's wait for a commit of offsets (`offsets.commit.timeout.ms`)."""

import asyncio

from quorumlog.broker.groups.core.requests import CommitResult, GroupRequest
from quorumlog.broker.server.api import BrokerContext
from quorumlog.wire.codec.error_codes import ErrorCode


def limit_commit(
    context: BrokerContext,
    result: "asyncio.Future[CommitResult]",
    commit: GroupRequest[CommitResult],
) -> None:
    """Limit the wait, not the write: the offsets may still be committed, and then are valid."""
    if result.done():
        return

    def time_out() -> None:
        if not result.done():
            result.set_result(commit.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    timeout_s = context.settings.offsets_commit_timeout_ms / 1000
    timer = asyncio.get_running_loop().call_later(timeout_s, time_out)
    result.add_done_callback(lambda _result: timer.cancel())
