"""What is deployed, held against the code that it calls; no Spark and no workspace."""
