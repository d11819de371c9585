"""The module tree beside a graph: containers, the memory it holds, and pickling of programs."""
