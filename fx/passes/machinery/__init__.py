"""The machinery that several passes share: regions of programs, constants, ranks, layers with weights, waits."""
