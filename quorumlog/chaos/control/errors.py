"""The HTTP statuses of errors, and the hints with them."""

from typing import Final, NamedTuple

from quorumlog.chaos.back_ends.back_end import BackEndFailed, NodeUnavailable
from quorumlog.chaos.control.acts import NoSuchLink, NoSuchNode
from quorumlog.chaos.control.histories import Conflict
from quorumlog.chaos.control.kinds import Misuse
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.registered import NotRegistered
from quorumlog.client.errors import KafkaError
from quorumlog.cluster import ClusterError, InvalidArgument


class ErrorAnswer(NamedTuple):
    """The answer to a failed request."""

    status: int
    error: str
    hint: str


_MISUSE: Final = 400
_CONFLICT: Final = 409  # with the state of the cluster; 408 and 5xx make some clients try again
_OURS: Final = 500
_HINTS: Final[dict[type[Exception], str]] = {
    NoSuchNode: "GET /v1/nodes shows the nodes and their states",
    NodeUnavailable: "GET /v1/nodes shows the nodes and their states",
    NoSuchLink: "choose another target: nodes or clients that have connections between them",
    TimeoutError: "GET /v1/status shows the state of the cluster; timeout_ms sets the wait",
}


def answer_of(error: Exception) -> ErrorAnswer:
    """Return the status, the text and the hint of an error; an unexpected one is 500."""
    match error:
        case Misuse() | NotRegistered():
            return ErrorAnswer(_MISUSE, error.error, error.hint)
        case Conflict():
            return ErrorAnswer(_CONFLICT, error.error, error.hint)
        case InvalidArgument() | ValueError():
            return ErrorAnswer(_MISUSE, *_in_two(error, "GET /v1/openapi.json has every parameter"))
        case ClusterError() | NoSuchNode() | NoSuchLink() | NodeUnavailable() | BackEndFailed():
            return ErrorAnswer(_CONFLICT, *_in_two(error, _hint_for(error)))
        case KafkaError() | HistoryError() | OSError():
            return ErrorAnswer(_CONFLICT, *_in_two(error, _hint_for(error)))
        case _:
            hint = "this is a bug of quorumlog: the log of the control server has its place"
            return ErrorAnswer(_OURS, f"{type(error).__name__}: {error}", hint)


def _hint_for(error: Exception) -> str:
    for kind, hint in _HINTS.items():
        if isinstance(error, kind):
            return hint
    return "GET /v1/status shows the state of the cluster"


def _in_two(error: Exception, hint: str) -> tuple[str, str]:
    """Return an error and a hint: messages of clusters have their remedy behind a semicolon."""
    text, _, remedy = str(error).partition("; ")
    return text or type(error).__name__, remedy or hint
