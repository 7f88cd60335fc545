"""The command line `pawl`. Commands import what they need when they run, so that `pawl --help` is quick."""
