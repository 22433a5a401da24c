"""Send rows through again: late events that should count, quarantined ones that now pass."""
