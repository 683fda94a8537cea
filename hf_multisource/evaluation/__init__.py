"""Decoding, scores with confidence intervals, perturbed sources, attention plots and tables of results."""
