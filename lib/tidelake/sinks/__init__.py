"""Write batches so that writing one again changes nothing."""
