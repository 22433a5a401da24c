"""Streaming queries of the hops; no other package starts any."""
