"""``check_pass``: a pass on random programs, and the smallest one on which it breaks a law."""
