"""From logits to tokens: penalties, a greedy pick or a draw for each row, and the check of drafted tokens."""
