"""From one operator to its dispatches."""
