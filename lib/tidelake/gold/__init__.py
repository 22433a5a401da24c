"""Silver to gold: partial aggregates of a batch and how they merge. Pure: frames in, frames out."""
