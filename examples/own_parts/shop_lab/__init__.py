"""Parts for the lab of quorumlog, in a package of their own."""
