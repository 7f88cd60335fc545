"""What tools/gen.py generates. Each module has `generate(root)`, which returns texts by path under root."""
