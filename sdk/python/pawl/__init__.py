"""Pawl: durable message workflows."""
