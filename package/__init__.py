"""Runs TOSA programs on any Vulkan 1.3 driver, and proves the result."""
