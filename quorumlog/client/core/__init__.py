"""Pure decisions of the client: batches, transactions, positions, membership, metadata cache."""
