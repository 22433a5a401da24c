"""Job: rows that were too late. Takes the arguments of `tidelake late`."""

from tidelake.cli.jobs import late

if __name__ == "__main__":
    late()
