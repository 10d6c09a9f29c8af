"""Figures and ratios, measured in one run: `make bench`. No test asserts a time."""
