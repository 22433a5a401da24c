"""A new pipeline from a sample of its data: what the payloads hold, and a first definition."""
