"""From the bytes of a TOSA program to a plan."""
