"""Questions that Python asks of traced values, and checks that a program makes of its inputs, with their messages."""
