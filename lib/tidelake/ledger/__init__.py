"""The ledger: row counts from commits, read without Spark and compared with the tables."""
