"""Metrics that clients report (KIP-714). Loaded only by a broker with `client.telemetry`."""
