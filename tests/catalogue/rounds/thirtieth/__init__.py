"""Passes of the thirtieth round, a file each."""
