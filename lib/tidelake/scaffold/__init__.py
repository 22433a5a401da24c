"""Generate a pipeline from a sample: infer the payload schema and write a first definition."""
