"""The vocabulary of faults: typed values, shared by `chaos run` and the simulator.

One module per fault on processes, or per family of faults that only a simulator can do. Each
exports `FAULTS`; `registry` finds them by name. Back ends perform them.
"""
