"""Times of two programs, taken in pairs, and the peak memory of each."""
