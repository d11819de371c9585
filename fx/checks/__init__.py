"""Checks that a program makes of its inputs: recognized in the user's bytecode, with their messages."""
