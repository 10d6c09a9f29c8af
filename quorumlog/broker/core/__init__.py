"""Pure: every rule of replication, idempotence and groups that decides something."""
