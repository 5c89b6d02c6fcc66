"""`breadbox doctor`: looks at a running box and names the trouble that it sees, its evidence, and the knob to turn.

`evidence` gathers, one file in `checks` judges one class of trouble, `report` prints. Nothing here changes the box.
"""
