"""Passes of the sixteenth round, a file each."""
