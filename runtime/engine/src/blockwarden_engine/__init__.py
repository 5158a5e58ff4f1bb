"""blockwarden_engine."""
