"""Streaming medallion pipelines on Delta Lake that can prove they lost nothing."""

__version__ = "0.1.0"
