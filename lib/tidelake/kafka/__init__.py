"""Kafka: topics as sources, offsets, schema registries, and a local broker for trials."""
