"""Where learners' code runs: a process that can read Python and write nothing that lasts. `worker` is the door.

    levels       what this machine offers: bubblewrap, or resource limits alone
    isolation    the files that the code may see, and what a fork gives up before it runs a learner's code
    fork_server  the warm process: it has imported torch, and becomes a kernel by forking
    kernel_proxy the process that stands for the kernel where Jupyter wants one
    task_server  the warm process beside it, ours: reads notebooks, runs nbval
    asking_kernel  what the fork becomes: given names, what asks and what answers, apart
    pristine     what was replaced is put back before every question
    message_guard  what the kernel speaks with is put back before it tells what was answered
    nbval_run    what nbval is told, and how each cell went; alone, it runs a notebook without a sandbox
    nbval_plugin beside nbval: weighs a hostile kernel's messages, reports every cell
    run_folder   the folder of one run, private, gone with its owner, swept where that was killed
    seccomp      the system calls that a learner's kernel has
    linux        the system calls that Python has no name for

The fork server never runs a learner's code; each submission gets a fork of its own, in process, file-system, network
and user namespaces of its own, which end with it.
"""
