"""Parts of responses that several handlers share: below the handlers, which import no other."""
