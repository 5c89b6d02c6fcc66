"""`breadbox bench compare`: the same loads on several servers, interleaved, with ratios and their spread.

`loads` says what is sent, `runs` sends it, `figures` reads what came of it, `table` puts it side by side, `machine`
watches whether somebody else used the machine meanwhile.
"""
