"""The socket server, replica fetchers and the owners of logs."""
