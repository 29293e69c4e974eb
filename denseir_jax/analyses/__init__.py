"""Diagnostic arrays that need a model: JAX in, plain numbers out."""
