"""What every room needs: run folders, typed configs, errors, progress, events. Imports no other room and no JAX."""
