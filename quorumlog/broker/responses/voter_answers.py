"""Changes of the voters of the metadata quorum, decided by its leader (KIP-853)."""

from collections.abc import Awaitable

from quorumlog.broker.responses.controller_answers import shortened, unanswered
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, VoterChangeResult


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
