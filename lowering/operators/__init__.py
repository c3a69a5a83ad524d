"""What each TOSA operator takes, gives and admits."""
