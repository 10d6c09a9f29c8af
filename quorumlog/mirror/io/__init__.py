"""The clients of a mirror, and the tasks that use them."""
