"""Helpers shared by the passes of the twentythird round share."""


def _only_reads_between(first, last):
    node = first.next
    while node is not last and node.op == "get_attr":
        node = node.next
    return node is last
