"""Pure: fetch sessions."""
