"""The Vulkan backend."""
