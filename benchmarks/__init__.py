"""Benchmarks: one script for each row of ``docs/benchmarks.md``, and some that have no row."""
