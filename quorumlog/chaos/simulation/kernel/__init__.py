"""The common parts of all simulated worlds: time, chance, network, disks, faults, trace, shrinking.

The kernel has no protocol. A world brings the processes that run on its machines, the rules that
must hold, and the faults that it performs itself: see `run.World`.
"""
