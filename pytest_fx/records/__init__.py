"""What runs leave on disk, and what an earlier run left: rows as they are measured, and files replaced whole."""
