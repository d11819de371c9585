"""The same pass at two revisions of the code, each in a process of its own (``--fx-against``)."""
