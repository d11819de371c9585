"""Passes of the fourteenth round, a file each."""
