"""One loop, one step maker, one checkpoint for every objective."""
