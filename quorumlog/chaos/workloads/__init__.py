"""What clients do while the nemesis is at work."""

from collections.abc import Mapping
from typing import Final

from quorumlog.chaos.workloads.append_read import AppendRead, AppendReadSettings, Recorder

WORKLOADS: Final[Mapping[str, str]] = {
    "append_read": "producers append unique values (acks=all), consumers read every partition",
}

__all__ = ["WORKLOADS", "AppendRead", "AppendReadSettings", "Recorder"]
