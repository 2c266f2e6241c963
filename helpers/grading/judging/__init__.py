"""One submission, compared with the worked lab, to one row. `marking` is the door.

reference      the worked lab, run with the class's seed; an instructor's own checks
answer_kernel  a notebook through nbval until every question had its chance: its answers asked, no check near them
check_kernel   the checks, run on what was answered, in a kernel without anything of the learner's
tamper_checks  answers that reach for what measures them
results        the vocabulary: a GradedQuestion, a Result
marking        all of it for one learner
"""
