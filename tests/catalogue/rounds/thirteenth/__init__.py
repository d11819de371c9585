"""Passes of the thirteenth round, a file each."""
