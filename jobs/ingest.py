"""Scheduled job: source to bronze. Takes the arguments of `tidelake run`."""

from tidelake.cli.jobs import ingest

if __name__ == "__main__":
    ingest()
