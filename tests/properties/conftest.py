"""How many random programs are tried: ``--hypothesis-profile=properties`` for thousands, else some."""

import hypothesis

hypothesis.settings.register_profile("properties", derandomize=False, max_examples=3000)
