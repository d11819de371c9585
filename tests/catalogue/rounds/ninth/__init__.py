"""Passes of the ninth round, a file each."""
