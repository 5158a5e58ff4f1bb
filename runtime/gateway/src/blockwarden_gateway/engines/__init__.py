"""The engines behind this gateway: reaching one, deciding whether it may be trusted, choosing among them."""
