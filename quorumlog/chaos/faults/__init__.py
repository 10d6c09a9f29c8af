"""The vocabulary of faults: typed values, shared by `chaos run` and the simulator.

One module per family: faults of processes, and faults that only a simulator can do. Each exports
`FAULTS`; `registry` finds them by name. Back ends perform them.
"""
