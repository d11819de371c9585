"""Facts about operators: Python's own, torch's schemas and overloads, effects, shared memory."""
