"""Reproducers fail when they are imported, while their faults exist; so pytest does not look for doctests in them."""

collect_ignore_glob = ["faults/*.py"]
