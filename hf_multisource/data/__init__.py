"""Read, check, encode and alter the rows of multi-source data."""
