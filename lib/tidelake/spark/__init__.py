"""Spark: sessions, jars, engine capabilities and tuning."""
