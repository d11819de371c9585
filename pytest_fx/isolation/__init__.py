"""How a test runs: in a child process, under a limit of time, with the process put back as it was."""
