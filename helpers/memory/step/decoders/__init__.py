"""The models of a step, written as torch runs them; `families` has the dense ones and the names of all."""
