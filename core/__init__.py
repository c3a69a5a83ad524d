"""The model that every backend shares: descriptors, errors, plans, bookkeeping."""
