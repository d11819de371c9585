"""Passes of the twentyeighth round, a file each."""
