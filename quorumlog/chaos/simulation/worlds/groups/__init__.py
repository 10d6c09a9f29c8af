"""The world `groups`: coordinators of consumer groups on brokers that fail, and their members."""
