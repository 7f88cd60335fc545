"""gRPC in front of the engine: validate, one engine call, convert."""
