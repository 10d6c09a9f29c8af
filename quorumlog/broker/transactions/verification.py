"""The question of a leader before a transaction's first append, under the name of its subject."""

from quorumlog.broker.partitions.io.transaction_verifier import TransactionVerifier

__all__ = ["TransactionVerifier"]
