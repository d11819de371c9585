"""The kernels for programs on 8-bit integers, and the choice between them where a program runs (6.2.1).

FBGEMM or oneDNN can compute a layer, each from weights in its own order. The processor decides whether a kernel is
right. The processor, the shape, the batch and the number of threads decide which kernel is faster. So both are tried
in the process that runs the program, and the faster right one is remembered.
"""
