"""Metrics of translations: their table, what each counts, and the bootstrap over test sets."""
