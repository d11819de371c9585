"""Passes of the seventh round, a file each."""
