"""From the raw data of a campaign to its figures, tables and plots."""
