"""Tables: their names, logs and metadata, reads and writes, and the locks of their writers."""
