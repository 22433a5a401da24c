"""Spark: its session, its jars, what it can do, and how it is tuned."""
