"""Clients of a campaign, as locust users; what they send is the same for every service."""
