"""Rooms beside `findings_service`: each ties the service to one thing outside, and the service does without any."""
