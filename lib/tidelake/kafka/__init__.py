"""Kafka: topics as a source, offsets, schema registries, and a local broker for trials."""
