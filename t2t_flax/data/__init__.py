"""Data pipeline from text to batches, in the order in which to read it.

- `sources`: pairs of texts in a fixed order
- `preprocess`: filters; pairs become ids (`tokenizers`, trained on `tokenizer_text`)
- `token_store`: the ids of all pairs, in files
- `batching`: windows of pairs, their rows, update k
- `dataset`: all of it for a run, changed by the `hooks` of extensions
"""
