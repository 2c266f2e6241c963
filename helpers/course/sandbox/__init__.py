"""Where learners' code runs: a process that can read Python and write nothing that lasts.

    levels      what this machine offers: bubblewrap, unshare, or resource limits alone
    view        the files that the code may see
    nursery     the warm process: it has imported torch, and becomes a kernel by forking
    isolation   what a fork gives up before it runs a learner's code
    shim        the process that stands for the kernel where Jupyter wants one
    linux       the system calls that Python has no name for

The nursery never runs a learner's code; each submission gets a fork of its own, in process, file-system, network and
user namespaces of its own, which end with it.
"""
