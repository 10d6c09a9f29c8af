"""Pure: the messages, record batches and numbers of the protocol."""
