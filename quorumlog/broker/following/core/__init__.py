"""Pure: the follower's side of a fetch session."""
