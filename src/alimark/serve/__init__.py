"""The HTTP service: endpoints that write watermarked text and detect watermarks, and a web page that uses them."""
