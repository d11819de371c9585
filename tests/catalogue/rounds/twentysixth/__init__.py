"""Passes of the twentysixth round, a file each."""
