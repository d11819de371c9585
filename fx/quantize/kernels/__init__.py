"""The kernels that programs on 8-bit integers run on, and which of them is chosen where a program runs (6.2.1).

FBGEMM or oneDNN can compute a layer, each from weights in an order of its own. Which of them is right depends on the
processor, and which is faster on that, the shape, the batch and the number of threads. So both are tried in the process
that runs the program, and the faster right one is remembered.
"""
