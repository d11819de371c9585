"""Passes of the seventeenth round, a file each."""
