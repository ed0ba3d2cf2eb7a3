"""The service: endpoints that mark everything they serve and check what they are shown, and a page where people look."""
