"""What must stay as it is while the code behind it changes: generated code, results in the interpreter, its reports.

`python -m tests.gate` compares all of it with the committed files; `--renew` writes them anew.
"""
