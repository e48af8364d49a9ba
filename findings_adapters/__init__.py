"""Adapters beside `findings_service`: each ties the service to one thing outside, and it does without any."""
