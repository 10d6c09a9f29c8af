"""One process: configuration, listeners, assembly, signals."""
