"""The metadata quorum: Raft as KIP-595 has it, on real logs."""
