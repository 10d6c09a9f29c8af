"""The life of an internal topic's partition that this broker leads: load, serve, resign."""
