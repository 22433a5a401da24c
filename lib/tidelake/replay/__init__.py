"""Commands that read tables again or replace them: late, repair, verify, backfill, erase."""
