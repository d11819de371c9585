"""The tests behind --fx-model, --fx-check and --fx-tables: modules that pytest collects."""
