"""Pure: where to look, what to keep, what a torn file still holds."""
