"""Job: what the identity of the jobs may not do. Takes the arguments of `tidelake doctor`."""

from tidelake.cli.jobs import doctor

if __name__ == "__main__":
    doctor()
