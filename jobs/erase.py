"""Job: a subject's rows. Takes the arguments of `tidelake erase`."""

from tidelake.cli.jobs import erase

if __name__ == "__main__":
    erase()
