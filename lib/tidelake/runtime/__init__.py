"""Wire the hops into streaming queries: the only place that starts any."""
