"""Members of the consumer protocol (KIP-848), and classic ones beside them, in one group."""
