"""Passes of the thirtyfirst round, a file each."""
