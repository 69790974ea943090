"""Torture: kills, damaged files, interrupts at every line, wrong calls, full disks and crowded folders, counted."""
