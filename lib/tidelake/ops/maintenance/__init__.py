"""Keep tables small: put files together, and delete what nobody needs any more."""
