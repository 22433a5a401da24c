"""Sources as raw records: reading, record identity, and conversion to bronze rows."""
