"""Measurements: one script for each row of ``docs/benchmarks.md``, and some beside them."""
