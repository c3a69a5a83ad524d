"""Comparison of backends: rules, runner, reports."""
