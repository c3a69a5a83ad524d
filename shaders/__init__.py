"""The kernels, and the interface that both shading languages share."""
