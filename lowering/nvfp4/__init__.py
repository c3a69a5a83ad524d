"""NVFP4 matrix products: artifacts, files, kernels, plans."""
