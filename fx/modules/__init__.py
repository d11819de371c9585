"""The module tree beside a graph: containers, the memory it holds, and how a program is pickled."""
