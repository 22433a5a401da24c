"""What each batch cost: measured while a run goes on, handed to those who asked for it."""
