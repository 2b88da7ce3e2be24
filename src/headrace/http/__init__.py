"""HTTP: sockets, bytes and routes. The rules are in `protocol`, the order in `engine`."""
