"""Examines a cluster and client settings from the place of a client, and names the faults."""

from quorumlog.doctor.examination import Examination, examine
from quorumlog.doctor.findings import Finding

__all__ = ["Examination", "Finding", "examine"]
