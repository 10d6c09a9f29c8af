"""The settings of the quorum: Kafka's names (with underscores for dots) and defaults."""

from dataclasses import dataclass

from quorumlog.settings.servers import flag, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """The timeouts of the quorum, in milliseconds, and its two flags.

    In Kafka, fetch_max_wait and observer_session are constants, and dead processes are not noticed.
    """

    controller_quorum_election_timeout_ms: int = integer(
        1000, "How long a voter waits for a leader: at random in [this, 2 x this)."
    )
    controller_quorum_fetch_timeout_ms: int = integer(
        2000, "How long a follower lives without a successful fetch; a leader waits 1.5 x this."
    )
    controller_quorum_election_backoff_max_ms: int = integer(
        1000, "The longest wait of a candidate that a resigning leader prefers less than others."
    )
    controller_quorum_request_timeout_ms: int = integer(2000, "When to give up on one request.")
    controller_quorum_retry_backoff_ms: int = integer(
        20, "When to repeat a request that failed.", least=0
    )
    controller_quorum_auto_join_enable: bool = flag(
        False,
        "Whether a node with the role controller that is no voter asks to become one, once.",
    )
    controller_quorum_fetch_max_wait_ms: int = integer(
        500, "How long a leader may hold back an empty answer. Not in Kafka.", least=0
    )
    controller_quorum_observer_session_ms: int = integer(
        300_000, "When a leader forgets an observer that went silent. Not in Kafka."
    )
    controller_quorum_dead_process_notice_enable: bool = flag(
        True,
        "Whether a node acts at once when a connection is refused: fences the broker, starts an "
        "election. Not in Kafka.",
    )
    controller_quorum_dead_process_stagger_ms: int = integer(
        30,
        "By how much each voter that notices a dead leader waits longer than the one before it. "
        "Not in Kafka.",
        least=2,
    )
