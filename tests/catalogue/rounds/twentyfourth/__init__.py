"""Passes of the twentyfourth round, a file each."""
