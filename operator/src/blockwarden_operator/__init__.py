"""blockwarden_operator."""
