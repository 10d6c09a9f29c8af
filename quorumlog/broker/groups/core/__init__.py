"""Pure: the group coordinator. Members, generations and committed offsets; KIP-62, 345, 394.

Every loaded partition of `__consumer_offsets` has one `GroupCoordinator`. It changes what is
durable only by applying committed records, so its durable state is the replayed log, always.
"""
