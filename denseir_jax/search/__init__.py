"""The mining river: text -> vectors -> index -> negatives. Calls models through models/embedder alone."""
