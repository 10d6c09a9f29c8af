"""The asyncio side of the protocol: frames and the one Kafka connection."""
