"""The live page: what it shows, how that is drawn, and the server that hands it out.

``facts`` reads the tables, ``drawing`` turns numbers into coordinates, ``rendering`` writes HTML,
``desk`` decides when to read again, ``server`` answers.
"""
