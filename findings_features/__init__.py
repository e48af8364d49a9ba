"""Optional modules of `findings_service`: endpoints and commands beyond the core."""
