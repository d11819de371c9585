"""The conditions of a test's run: in a child process, under a limit of time, with the process restored afterwards."""
