"""Generated stubs of package `pawl.testing.v1`; see proto/pawl/testing/v1 for the commented sources."""
