"""Scheduled job: a backfill's steps. Takes the arguments of `tidelake backfill`."""

from tidelake.cli.jobs import backfill

if __name__ == "__main__":
    backfill()
