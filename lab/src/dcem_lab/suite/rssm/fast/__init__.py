"""The same computations as the parent package, with fused kernels and hand-written gradients."""
