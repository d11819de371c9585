"""What --fx-model, --fx-check and --fx-tables run: modules of tests, which pytest collects."""
