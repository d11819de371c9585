"""Beside pytest-xdist: checks on all workers, timings on one of them and never beside other work."""
