"""Lines of bad input: files of cases beside this one, each case with the lines that the command says.

A case is a block of lines, and blocks are apart by an empty line. ``# …`` is a remark, ``| …`` a line of the file
x.yaml (of NAME after a line ``@ NAME``), ``$ …`` the words of the command in a shell's quotes. All lines below the
words are expected, whole: those on stderr that begin with ``error:`` or ``failed:``.

``python -m tests.errors.write`` writes the expected lines anew, from what the commands say now.
"""
