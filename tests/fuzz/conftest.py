"""The length of fuzzing: ``--hypothesis-profile=fuzz`` (``make fuzz``) for 100,000 files, else for a moment."""

import hypothesis

hypothesis.settings.register_profile("fuzz", derandomize=False, max_examples=100_000)
