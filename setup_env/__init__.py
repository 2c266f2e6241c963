"""Creates the workbook's environment in .venv and opens JupyterLab in it; `make` calls it.

    python3 -m setup_env env                create .venv, or refresh it when the pins changed
    python3 -m setup_env lab [ARGS]         the same, then JupyterLab on the first notebook
    python3 -m setup_env environment.yml    rewrite environment.yml from requirements.txt

Standard library only: it runs before anything is installed. Its syntax stays readable for Python 3.6, which
old systems still call python3, so that they get a sentence about their version and not a SyntaxError.
"""
