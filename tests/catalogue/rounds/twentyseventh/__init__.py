"""Passes of the twentyseventh round, a file each."""
