"""Measures a cluster of any Kafka: loads of a client, and six scenarios published in 2017.

`load` and `scenarios` have the loads as plain data, `claims` judges their results; both are pure.
`produce`, `consume` and `latency` run one load, `worker` runs them in a process of its own.
"""
