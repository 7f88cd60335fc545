"""Pure types of the server: no I/O, no Redis, no gRPC."""
