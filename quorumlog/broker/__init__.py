"""Data partitions, groups, and the Kafka API in front of them."""
