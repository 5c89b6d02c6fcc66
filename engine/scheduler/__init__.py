"""Who computes how many tokens in the next step, who waits, who is preempted, and who is done."""
