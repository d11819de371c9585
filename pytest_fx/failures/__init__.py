"""What is said of a pass that fails: the edit and the node to blame, and a test file that shows it alone."""
