"""What both sides agree on: settings, errors, the wire, readings of the card."""
