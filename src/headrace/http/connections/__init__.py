"""HTTP/1.1 on sockets: connections, requests read and answers sent, within bounds."""
