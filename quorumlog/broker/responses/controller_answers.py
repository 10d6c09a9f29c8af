"""Waits for the controller's results of an admin request; shortens messages to their fields."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from quorumlog.broker.controller_requests.image_watch import SEEN_HERE_MS
from quorumlog.broker.responses.cluster_view import partitions_of
from quorumlog.broker.server.api import BrokerContext
from quorumlog.metadata_quorum.cluster_changes import ClusterChange, Outcome, RequestFor, parts_of
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    RequestTooLarge,
    VoterChangeResult,
)
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode

MESSAGE_MAX: Final = 1000  # characters


class _Result(Protocol):
    @property
    def error_code(self) -> ErrorCode: ...


ResultT = TypeVar("ResultT", bound=_Result)
ResultT_co = TypeVar("ResultT_co", bound=_Result, covariant=True)


class _Results(Protocol[ResultT_co]):
    @property
    def results(self) -> tuple[ResultT_co, ...]: ...


async def decided(
    context: BrokerContext,
    request: RequestFor[_Results[ResultT]],
    *,
    names: Iterable[str],
    kind: Callable[..., ResultT],
    doubt: str,
    is_seen: Callable[[ClusterImage, ResultT], bool],
    wait_ms: int | None,
    makes_partitions: bool = False,
) -> Sequence[ResultT]:
    """Return the controller's results, once this broker's image has the changes.

    It waits at most `wait_ms`; None: no change was requested. If the request `makes_partitions`
    of the topics `names`, it also waits until this broker serves those that it leads. Without an
    answer, it returns a `kind` of result for each name. `doubt`: the message about the possible
    effect in that case.
    """
    names = [*names]
    try:
        results = (await context.controller.ask(request)).results
    except ControllerUnavailable as error:
        code, message = unanswered(error, doubt)
        return [kind(name=name, error_code=code, error_message=message) for name in names]
    changed = [result for result in results if result.error_code is ErrorCode.NONE]
    if changed and wait_ms is not None:
        await context.metadata.wait_until(
            lambda image: all(is_seen(image, result) for result in changed),
            timeout_ms=wait_ms,
            leaders_of=lambda image: partitions_of(image, names if makes_partitions else ()),
        )
    return results


def unanswered(error: ControllerUnavailable, doubt: str) -> tuple[ErrorCode, str]:
    """Return the error code and the message. `doubt`: the message about the possible effect."""
    if isinstance(error, RequestTooLarge):
        return ErrorCode.POLICY_VIOLATION, str(error)
    return ErrorCode.REQUEST_TIMED_OUT, f"no controller answered in time; {doubt}"


def shortened(message: str | None) -> str | None:
    """Return an error message that fits its field, even if it quotes a long request."""
    if message is None or len(message) <= MESSAGE_MAX:
        return message
    return message[:MESSAGE_MAX] + "..."


async def changed_voters(asked: Awaitable[VoterChangeResult], *, doubt: str) -> VoterChangeResult:
    """Return the outcome of the change, with a message that fits its field.

    `doubt`: the message about the possible effect, if no leader has answered.
    """
    try:
        result = await asked
    except ControllerUnavailable as error:
        code, message = unanswered(error, doubt)
        return VoterChangeResult(error_code=code, error_message=message)
    return VoterChangeResult(
        error_code=result.error_code, error_message=shortened(result.error_message)
    )


async def changed_cluster(
    context: BrokerContext, change: ClusterChange, *, doubt: str
) -> list[Outcome]:
    """Return an outcome per part of the change, with messages that fit their fields.

    It waits until this broker's image has the change, at most SEEN_HERE_MS after the commit.
    `doubt`: the message about the possible effect, if no controller has answered.
    """
    try:
        outcomes = await context.controller.ask(change)
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
