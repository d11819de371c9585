"""Times of two programs, taken in pairs, and the memory that each needs at most."""
