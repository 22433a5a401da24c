"""Silver to gold: partial aggregates of a batch and how they merge. Pure: frames in, frames out."""

# Of a row to merge: the table holds it no more.
GONE = "_gone"
