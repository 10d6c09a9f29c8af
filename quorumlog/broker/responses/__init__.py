"""Parts of responses that several handlers share; handlers do not import each other."""
