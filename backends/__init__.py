"""The backends: one sub-package each, none knows another."""
