"""Delta tables: names, logs, commit metadata, reads, writes and locks."""
