"""Passes of the twentyninth round, a file each."""
