"""Helpers shared by the passes of the sixteenth round share."""


def finish(graph_module):
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
