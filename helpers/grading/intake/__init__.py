"""From what was handed in to the notebook that is run. `submissions` is the door.

files        a folder or a file, looked at without trusting it
archives     a class's zip, and a learner's within it
lms          what an LMS calls them, and what that says
owners       whose is which, and the name of each learner's files
submissions  the one notebook of each learner, or the reason why there is none
reading      a notebook as plain cells, whatever its bytes are
assemble     a learner's answers put into the worked lab
"""
