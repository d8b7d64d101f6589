"""What a server is made of: engines, services, conversations, their beginning and end."""
