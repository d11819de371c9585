"""The objects behind the fixtures ``fx_equal`` and ``fx_timing``, and the number of changes that a pass makes."""
