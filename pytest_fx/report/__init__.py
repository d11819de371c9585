"""Records of tests, the table at the end of a run, and reports."""
