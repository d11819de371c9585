"""``make engines``: sixteen architectures in engines of each runtime; ``results/engines.md``."""
