"""Optional modules that connect the service to something outside: a format, a protocol, a server, an engine."""
