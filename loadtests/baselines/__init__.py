"""What people run today, each in one readable file, with the same weights and the same HTTP shapes as ours."""
