"""Text to batches; in the order of the data: decoding, corpus, tokenizer, tokens, batches."""
