"""Passes of the twentyfifth round, a file each."""
