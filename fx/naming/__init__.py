"""Names: unique ones for nodes and variables, dotted ones for call targets, and programs as text for people."""
