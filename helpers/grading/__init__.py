"""What an instructor runs: a class's submissions to a gradebook; and what a learner runs to see the same points.

    batch       `workbook grade`: what is done, what is still to do
    executors   who marks: workers side by side on this machine, or a cluster's engines
    stored_reference   the worked lab that was run before, where nothing has changed since
    attempts    several notebooks of one learner, and the best of them
    publish     all that is written from the results: points by hand, the due date, tables, pages
    total       `workbook grade --total`: several labs in one table
    check       `workbook check`, one learner's lab on this machine, without a sandbox
    intake      whose notebook is where, taken and read without trusting anything, put into the worked lab
    sandbox     where learners' code runs
    judging     the worked lab with the class's secret seed; one submission compared with it, to one row
    reports     what people read: gradebook, manual.csv, feedback, summary; who is late, what is alike, what changed
    upload      what an LMS imports: its gradebook, and feedback.zip
    people      one learner in two lists
    roster      who is in the class, and who of them handed in nothing
    text        what learners wrote, made harmless wherever a person sees it

docs/grading.md is the guide. This room imports every other but cli, which alone imports it.

    from helpers.grading.batch import Options, grade
    grade("02", Path("submissions.zip"), Path("grades"), root, Options(seed="7"))
"""
