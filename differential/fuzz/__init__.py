"""Random programs, an independent check of their plans, and the reduction of findings."""
