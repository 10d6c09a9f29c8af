"""The parts of authentication that reach files and the network."""
