"""The aiohttp application, which serves sockets, HTTP routes and the static page."""
