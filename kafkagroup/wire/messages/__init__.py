"""Every request and answer, one file a family."""
