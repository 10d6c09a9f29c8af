"""The driver of one node's quorum: it feeds the core and performs its effects, without decisions.

It needs a Disk, and the parts in `dependencies`: a clock, an executor, a transport. So a simulator
can run it as a node does.
"""
