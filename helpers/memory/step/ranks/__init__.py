"""What ranks share of a step; `zero` is what a rank holds and sends, the others are moments of one rank's step."""
