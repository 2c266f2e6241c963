"""From what was handed in to the notebook that is run. `submissions` is the door.

files        a folder, a zip or a file, looked at without trusting it
owners       whose is which: what folders and LMSs call them
submissions  the one notebook of each learner, or the reason why there is none
reading      a notebook as plain cells, whatever its bytes are
assemble     a learner's answers put into the worked lab
"""
