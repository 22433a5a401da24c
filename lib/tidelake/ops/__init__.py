"""Look at the tables and at the machine, without Spark."""
