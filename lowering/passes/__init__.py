"""Changes to a whole graph before it is lowered."""
