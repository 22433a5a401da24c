"""Take a subject's rows out of every table, and let the streams go on without them."""
