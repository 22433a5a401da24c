"""The live page: ``facts`` reads tables, ``desk`` caches facts, ``rendering`` writes HTML."""
