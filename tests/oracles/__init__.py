"""What the pipelines should produce, worked out in plain Python and pandas.

Nothing here may import ``tidelake``: an oracle that shares code with what it judges agrees with
its mistakes.
"""
