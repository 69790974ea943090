"""What the paper says: settings and published numbers, in one place."""
