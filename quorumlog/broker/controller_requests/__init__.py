"""This broker's requests to the controller: registration, ISR changes, producer ids."""
