"""Holding a subject, applying a transform to it, running both, and comparing their results."""
