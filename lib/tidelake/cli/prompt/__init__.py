"""The interactive side of ``tidelake sql``: statement after statement, at a prompt or piped."""
