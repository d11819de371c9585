"""Passes of the thirtysecond round, a file each."""
