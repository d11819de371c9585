"""Byte code: the instructions of each Python version, their successors, and the values that they make and take."""
