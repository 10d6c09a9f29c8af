"""Requests of this broker to the controller: registration, ISR changes, reports, producer ids."""
