"""What runs leave on disk: rows as they are measured, and one file that is replaced whole at the end."""
