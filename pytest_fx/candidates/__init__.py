"""The judge: compares a candidate with a reference, each in its own process."""
