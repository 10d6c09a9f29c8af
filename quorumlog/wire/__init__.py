"""Kafka's protocol: bytes <-> values, independent of this cluster."""
