"""The live page: ``facts`` reads the tables, ``rendering`` writes HTML.

``desk`` decides when to read again, ``server`` answers.
"""
