"""Stages, and recipes as resumable chains of them."""
