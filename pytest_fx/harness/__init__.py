"""One way to hold what is judged, to apply a transform to it, to run both, and to compare what they do."""
