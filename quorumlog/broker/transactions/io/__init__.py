"""The transaction coordinators of this broker, their markers, and what leaders ask them."""
