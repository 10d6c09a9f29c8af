"""The systems that are simulated, one package each."""
