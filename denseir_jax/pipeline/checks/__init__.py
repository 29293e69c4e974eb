"""What the stage `check_data` looks at: passages, judgments, a training set, and what training on them would take."""
