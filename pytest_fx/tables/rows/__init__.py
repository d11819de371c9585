"""The tables of the evaluation, each with the paper's numbers beside those that are measured."""
