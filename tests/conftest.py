"""What all tests share; the parts are in tests/harness/."""

pytest_plugins = ["harness.plugin", "harness.running", "pytester"]
