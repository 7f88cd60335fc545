"""How the client and the worker do their work. Nothing here is public."""
