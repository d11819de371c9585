"""Passes of the eighth round, a file each."""
