"""From text on disk to rows of token ids: readers, tokenizer, token store, row sources. Imports no JAX."""
