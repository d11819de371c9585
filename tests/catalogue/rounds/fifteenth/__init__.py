"""Passes of the fifteenth round, a file each."""
