"""Rules of groups and transactions, by their committed logs and by the messages of clients.

Each oracle reads the committed batches of `__consumer_offsets`, `__transaction_state` and the data
partitions, and each request as it arrives at a broker, with the response as the broker writes it.
It models the protocol, and calls no code of a coordinator.
"""
