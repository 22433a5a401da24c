"""Pipelines as users of other engines write them, each a program of its own."""
