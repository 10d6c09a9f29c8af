"""The vocabulary of faults: typed values, shared by `chaos run` and the simulator.

One file for each thing that breaks. `registry` lists all kinds by name; back ends perform them.
"""
