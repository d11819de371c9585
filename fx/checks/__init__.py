"""Queries of traced values by Python, and checks that a program makes of its inputs, with their messages."""
