"""Bronze to silver: decide, once, the fate of each row. Pure: frames in, frames out."""
