"""The ledger: commits as the record of every row, read without Spark and compared with tables."""
