"""What the fixtures fx_equal and fx_timing give a test, and how often a pass matches."""
