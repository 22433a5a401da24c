"""The fast lane: alerts within milliseconds, which the tables confirm or retract later."""
