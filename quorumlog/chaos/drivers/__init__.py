"""The client libraries that a workload can use, behind one small interface.

The broker must be tested with other clients than its own, so a workload uses only this interface.
"""
