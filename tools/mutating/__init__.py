"""What tools/mutants.py is made of: the syntax of Lua, what is taken out of it, and who has to notice."""
