"""The live page: ``facts`` reads tables, ``facts_cache`` keeps the facts, ``server`` shows them."""
