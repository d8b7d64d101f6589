"""Who may come in, and with how many sessions."""
