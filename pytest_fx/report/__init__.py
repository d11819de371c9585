"""What is recorded of a test, and the table at the end of a run."""
