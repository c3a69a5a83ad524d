"""Support for the tests, imported as `harness`."""
