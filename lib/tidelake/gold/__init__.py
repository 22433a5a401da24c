"""Silver to gold: what a batch changes in each kind of table. Pure: frames in, frames out."""
