"""Small workflows to start from; run one with `pawl worker examples.counter:counter`."""
