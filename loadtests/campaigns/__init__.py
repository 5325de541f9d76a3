"""Campaigns: who sends what, how fast, against which services, and what must hold afterwards."""
