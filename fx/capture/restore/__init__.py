"""The state that a capture touches: recorded before, restored afterwards, and searched for remaining traced values."""
