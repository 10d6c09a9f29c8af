"""A world of logs alone: retention, deletion of records and compaction shorten them."""
