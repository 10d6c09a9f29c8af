"""Pure: election, replication and the high watermark of the metadata log (KIP-595, KIP-996)."""
