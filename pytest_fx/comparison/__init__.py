"""Whether a program and a transformed one compute the same: capture, runs of both, contracts, and what is compared."""
