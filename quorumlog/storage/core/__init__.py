"""Pure rules of a log: index lookups, appends, retention, compaction, recovery of torn files."""
