"""The pytest plugin: clusters to test against, faults in the middle of a test, proof by a history.

pytest loads `plugin` by its entry point; unused parts are not imported. Guide: docs/testing.md.
The names here are for annotations, except the functions.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.chaos.control.manual_nemesis import ManualNemesis
    from quorumlog.chaos.history import checksum_of
    from quorumlog.testing.chaos_run import ChaosRun
    from quorumlog.testing.clusters import MakeCluster
    from quorumlog.testing.crashes import Crash, ProgramFailed, killed_at
    from quorumlog.testing.history import History
    from quorumlog.testing.topics import FreshTopic, MakeTopic, read_topic
    from quorumlog.testing.waits import wait_for_leaders, wait_until_lag_is_zero

__all__ = [
    "ChaosRun", "Crash", "FreshTopic", "History", "MakeCluster", "MakeTopic", "ManualNemesis",
    "ProgramFailed", "checksum_of", "killed_at", "read_topic", "wait_for_leaders",
    "wait_until_lag_is_zero",
]  # fmt: skip

_HOME = {
    "ChaosRun": "quorumlog.testing.chaos_run",
    "Crash": "quorumlog.testing.crashes",
    "History": "quorumlog.testing.history",
    "ManualNemesis": "quorumlog.chaos.control.manual_nemesis",
    "MakeCluster": "quorumlog.testing.clusters",
    "FreshTopic": "quorumlog.testing.topics",
    "MakeTopic": "quorumlog.testing.topics",
    "ProgramFailed": "quorumlog.testing.crashes",
    "checksum_of": "quorumlog.chaos.history",
    "killed_at": "quorumlog.testing.crashes",
    "read_topic": "quorumlog.testing.topics",
    "wait_for_leaders": "quorumlog.testing.waits",
    "wait_until_lag_is_zero": "quorumlog.testing.waits",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'quorumlog.testing' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
