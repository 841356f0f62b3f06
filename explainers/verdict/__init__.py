"""What the numbers about a map support: facts, rules and one sentence."""
