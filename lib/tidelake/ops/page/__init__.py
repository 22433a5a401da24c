"""The live page: ``facts`` reads tables, ``desk`` caches the facts, ``rendering`` makes HTML."""
