"""Translation metrics: the table of metrics, their definitions, and significance tests over test sets."""
