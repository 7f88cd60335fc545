"""The demo: a durable pipeline over real documents that survives kill -9, and proves it from outside.

Read in this order: `corpus` (what is read), `analyse` (what the steps do), `workflows`, `marks` (the steps'
effects, counted outside Redis), `processes`, `chaos` (who is killed, and how that is proved), `audit` (the
report), `run`.
"""
