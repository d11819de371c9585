"""Passes of the twentythird round, a file each."""
