"""The quorum's settings: Kafka's names, units and defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """How long a voter waits, and for what. Milliseconds.

    The last four are ours: Kafka has the first two as constants, and never notices a dead process.
    """

    controller_quorum_election_timeout_ms: int = 1000
    """How long to wait for a leader: uniform in [this, 2 x this)."""
    controller_quorum_fetch_timeout_ms: int = 2000
    """How long a follower lives without a successful fetch; a leader waits 1.5 x this."""
    controller_quorum_election_backoff_max_ms: int = 1000
    """The longest wait of a candidate that a resigning leader prefers less than others."""
    controller_quorum_request_timeout_ms: int = 2000
    """When to give up on one request."""
    controller_quorum_retry_backoff_ms: int = 20
    """When to repeat a request that failed."""
    controller_quorum_fetch_max_wait_ms: int = 500
    """How long a leader may hold back an empty answer."""
    controller_quorum_observer_session_ms: int = 300_000
    """When a leader forgets an observer that went silent."""
    controller_quorum_dead_process_notice_enable: bool = True
    """Whether a refused connection to the leader starts an election at once."""
    controller_quorum_dead_process_stagger_ms: int = 30
    """By how much the second voter to notice waits longer than the first; at least 2."""
