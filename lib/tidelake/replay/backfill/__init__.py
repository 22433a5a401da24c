"""Rebuild a pipeline's tables beside the live ones, compare, swap, and take it back."""
