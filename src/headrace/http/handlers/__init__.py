"""What answers requests: a module for each kind of resource, called by `http.routes`."""
