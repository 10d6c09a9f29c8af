"""Kafka bytes <-> values. Knows nothing of this cluster."""
