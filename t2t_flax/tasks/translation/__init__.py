"""Translation: pairs of sentences, scored by BLEU, chrF and TER."""
