"""The client libraries that a workload can be run with, behind one small interface.

The broker must not be judged by its own client alone, so the workload sees only this.
"""
