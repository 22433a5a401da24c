"""Folders and files, on a disk or on an object store that speaks S3."""
