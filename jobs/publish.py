"""Scheduled job: silver to gold. Takes the arguments of `tidelake run`."""

from tidelake.cli.hops import publish

if __name__ == "__main__":
    publish()
