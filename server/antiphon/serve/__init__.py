"""The aiohttp application: sockets, HTTP, security, static page."""
