"""Pure: fetch requests, fetch sessions, and the memory budget of responses."""
