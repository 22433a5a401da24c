"""Bronze to silver: decide each row's fate once. Pure functions on DataFrames."""
