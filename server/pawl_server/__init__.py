"""The Pawl server: gRPC in front, one Lua script per state transition in Redis behind."""
