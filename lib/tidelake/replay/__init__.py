"""Commands that reread or replace tables: late, quarantine, repair, verify, backfill, erase."""
