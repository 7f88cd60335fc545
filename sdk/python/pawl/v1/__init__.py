"""Generated protobuf messages and gRPC stubs of package `pawl.v1`; see proto/pawl/v1 for the commented sources."""
