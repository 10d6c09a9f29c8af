"""Producer, Consumer and Admin, on wire alone."""
