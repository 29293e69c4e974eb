"""What the stage `mine` is made of: who asks, what is found, what is read and scored about it, what is chosen and written."""
