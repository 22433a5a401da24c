"""Scheduled job: steps of a backfill. Takes the arguments of `tidelake backfill`."""

from tidelake.cli.jobs import backfill

if __name__ == "__main__":
    backfill()
