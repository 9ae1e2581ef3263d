"""Task models: readers, inputs with ELMo in them, models, official-equivalent scores, and one loop that fits them all."""
