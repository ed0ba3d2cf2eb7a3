"""What keys depend on for ever. A change here that alters a result would make marked texts unfindable."""
