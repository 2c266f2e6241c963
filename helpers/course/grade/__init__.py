"""A class's submissions to a gradebook: `workbook grade`, told in docs/grading.md.

    batch       the whole of it: what is done, what is still to do, what is published
    intake      whose notebook is where, taken without trusting anything (listing, archive, owners, choice)
    reading     a notebook as plain cells, whatever its bytes are
    paper       the worked lab, run with the class's secret seed: what everybody is held against
    marking     one submission to one row; desks do it side by side, or on a cluster
    bench       the processes: examiner (ours) and, through the sandbox, kernels (the learners')
    private     an instructor's own checks; suspicion  answers that reach for what measures them
    gradebook, manual, feedback, summary   what people read

`model` has the vocabulary: a Question, a Result.
"""
