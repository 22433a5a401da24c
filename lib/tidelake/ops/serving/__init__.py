"""Serve the tables to tools that speak JDBC: Spark's own Thrift server, for reading only."""
