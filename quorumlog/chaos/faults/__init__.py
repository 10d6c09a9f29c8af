"""What a nemesis can do to a cluster, by role: the schedule is data, drawn from one seed."""

from quorumlog.chaos.faults.schedule import FAULTS, ROLES, FaultAction, Schedule, draw

__all__ = ["FAULTS", "ROLES", "FaultAction", "Schedule", "draw"]
