"""Scheduled job: bronze to silver. Takes the arguments of `tidelake run`."""

from tidelake.cli.jobs import refine

if __name__ == "__main__":
    refine()
