"""The same mathematics as the files above, in fused kernels and with gradients written by hand."""
