"""Pure: the events, effects and protocol that every coordinator core has."""
