"""Scheduled job: silver to gold. Takes the arguments of `tidelake run`."""

from tidelake.cli.jobs import publish

if __name__ == "__main__":
    publish()
