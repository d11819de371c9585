"""What a pass is worth: paired rounds, peak memory, and the comparison with an earlier run."""
