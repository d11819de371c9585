"""Reproducers of faults of released software, one file each, and their state on the installed versions."""
