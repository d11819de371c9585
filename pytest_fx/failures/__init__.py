"""Reports on a pass that fails: the edit and the node to blame, and a test file that reproduces the failure."""
