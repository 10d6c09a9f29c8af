"""Pure: batches, membership and the metadata cache of the client."""
