"""Pretraining of biLMs: corpus, training step, loop, perplexity."""
