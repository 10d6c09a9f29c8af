"""The Kafka listener: its connections, and the context of the handlers."""
