"""The number of random programs: ``--hypothesis-profile=properties`` for thousands, else some."""

import hypothesis

hypothesis.settings.register_profile("properties", derandomize=False, max_examples=3000)
