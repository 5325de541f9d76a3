"""Real arrivals and real questions: what the campaigns replay."""
