"""The device mesh, where arrays live on it, and the contrastive loss over all of it."""
