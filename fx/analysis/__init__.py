"""What a graph says of itself without running: whether it is well formed, and what depends on what."""
