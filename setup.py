"""Thin on purpose: everything is in pyproject.toml."""

from setuptools import setup

setup()
