"""What the paper says, in one place: its settings and its published numbers."""
