"""Scheduled job: all hops until told to stop. Takes the arguments of `tidelake run`."""

from tidelake.cli.jobs import stream

if __name__ == "__main__":
    stream()
