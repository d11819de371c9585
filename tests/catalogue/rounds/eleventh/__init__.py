"""Passes of the eleventh round, a file each."""
