"""The error of an admin request that the controller did not answer."""

from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, RequestTooLarge
from quorumlog.wire.codec.error_codes import ErrorCode


def unanswered(error: ControllerUnavailable, doubt: str) -> tuple[ErrorCode, str]:
    """Return the error code and the message. `doubt`: what may have happened nevertheless."""
    if isinstance(error, RequestTooLarge):
        return ErrorCode.POLICY_VIOLATION, str(error)
    return ErrorCode.REQUEST_TIMED_OUT, f"no controller answered in time; {doubt}"
