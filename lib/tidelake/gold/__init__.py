"""Silver to gold: compute a batch's changes per kind of table. Pure functions on DataFrames."""
