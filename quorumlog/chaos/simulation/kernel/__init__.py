"""What every simulated world shares: time, randomness, network, disks, faults, trace, shrinking.

The kernel knows no protocol. A world brings the processes that run on its machines, the rules that
must hold, and the faults that only it understands: see `run.World`.
"""
