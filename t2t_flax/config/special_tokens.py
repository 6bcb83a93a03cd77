"""Token ids that have the same meaning in every vocabulary."""

PAD, EOS, UNK = 0, 1, 2
