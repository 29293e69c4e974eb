"""Measures, significance, hybrid runs and the report: reads runs and judgments, knows neither JAX nor models."""
