"""The shard that loads and drives a coordinator of an internal topic: groups or transactions."""
