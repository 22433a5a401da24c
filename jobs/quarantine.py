"""Job: quarantined rows. Takes the arguments of `tidelake quarantine`."""

from tidelake.cli.jobs import quarantine

if __name__ == "__main__":
    quarantine()
