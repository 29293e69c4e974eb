"""Recipes of several stages, as configs: which link reads what from which. The numbers come from the cards."""
