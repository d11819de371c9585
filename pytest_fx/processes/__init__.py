"""Work in another process, and limits of time and memory for it."""
