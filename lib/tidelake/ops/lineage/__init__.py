"""Tell an OpenLineage backend which tables each hop read and wrote."""
