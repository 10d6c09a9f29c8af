"""Mutate the seams of the product by machine, and execute the nearest tests on each mutant."""
