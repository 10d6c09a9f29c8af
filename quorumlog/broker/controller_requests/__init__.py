"""What this broker asks of the controller: registration, ISR changes, producer ids."""
