"""Passes of the twelfth round, a file each."""
