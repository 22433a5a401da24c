"""A continuous run for hours, killed again and again, and compared with an oracle at its end.

Its parts are modules of their own to stay readable: the stream, the killed process, the samples,
the oracle, and the page.
"""
