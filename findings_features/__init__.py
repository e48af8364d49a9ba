"""Features beside `findings_service`: operations and commands of its own, of which the service needs none."""
