"""Automation: builders of schedules and sensors that take a declaration, and the rules they follow."""
