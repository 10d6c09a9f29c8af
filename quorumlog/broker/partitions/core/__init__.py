"""Pure: every rule of replication, admission and idempotence that decides something."""
