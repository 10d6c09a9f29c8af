"""A world of logs alone: what retention, deletion of records and compaction leave of them."""
