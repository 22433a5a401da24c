"""Kafka: a broker of one's own for laptop and tests."""
