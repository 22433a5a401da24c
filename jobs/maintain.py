"""Scheduled job: compact and vacuum tables. Takes the arguments of `tidelake maintain`."""

from tidelake.cli.jobs import maintain

if __name__ == "__main__":
    maintain()
