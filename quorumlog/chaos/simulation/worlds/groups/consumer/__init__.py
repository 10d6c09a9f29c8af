"""Members of the consumer protocol (KIP-848) and classic members in one group."""
