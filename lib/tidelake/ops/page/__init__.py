"""The live page: ``facts`` reads tables, ``desk`` caches the facts, ``server`` shows them."""
