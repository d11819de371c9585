"""Graphs as Python code: spelling, source that tools can see, packages on disk (paper, section 4.3)."""
