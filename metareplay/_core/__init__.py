"""What everything else stands on: draws, plans, tables of examples, weights, files."""
