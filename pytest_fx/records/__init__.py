"""Records of this run and of earlier ones, on disk: rows appended as they are measured, and files replaced whole."""
