"""The Kafka listener: connections, and what a handler is given."""
