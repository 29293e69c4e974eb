"""What is learned: each objective is a config, a row source, and two pure functions (see base.py). One file each."""
