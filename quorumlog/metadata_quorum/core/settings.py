"""The settings of the quorum: Kafka's names (with underscores for dots) and defaults."""

from dataclasses import dataclass

from quorumlog.settings.servers import flag, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """The timeouts of the quorum, in milliseconds, and its two flags.

    In Kafka, fetch_max_wait and observer_session are constants, and dead processes are not noticed.
    """

    controller_quorum_election_timeout_ms: int = integer(
        1000, "Election timeout of a voter: random in [this, 2 x this)."
    )
    controller_quorum_fetch_timeout_ms: int = integer(
        2000, "Maximum time of a follower without a successful fetch; of a leader, 1.5 x this."
    )
    controller_quorum_election_backoff_max_ms: int = integer(
        1000, "Maximum delay of the resigning leader's less preferred candidates."
    )
    controller_quorum_request_timeout_ms: int = integer(2000, "Timeout of a request.")
    controller_quorum_retry_backoff_ms: int = integer(
        20, "Delay before a failed request is retried.", least=0
    )
    controller_quorum_auto_join_enable: bool = flag(
        False, "Whether an observer with the role controller requests once to become a voter."
    )
    controller_quorum_fetch_max_wait_ms: int = integer(
        500, "Maximum delay of an empty fetch response. Not in Kafka.", least=0
    )
    controller_quorum_observer_session_ms: int = integer(
        300_000, "Time after which a leader drops an observer that stops fetching. Not in Kafka."
    )
    controller_quorum_dead_process_notice_enable: bool = flag(
        True,
        "Whether a refused connection immediately fences the broker or starts an election. Not in "
        "Kafka.",
    )
    controller_quorum_dead_process_stagger_ms: int = integer(
        30,
        "Additional election delay of each further voter after a leader's process has ended. Not "
        "in Kafka.",
        least=2,
    )
