"""The driver of one node's quorum: it feeds the core and performs its effects; it decides nothing.

It needs a Disk, and what `seams` names: a clock, an executor, a transport. So it runs in a simulator
as it runs in a node.
"""
