"""NumPy evaluation of the TOSA operators."""
