"""Byte code: the instructions of each version of Python, where each leads, and which values it makes and takes."""
