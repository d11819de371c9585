"""The judge: a candidate in the place of a reference, each in a process of its own."""
