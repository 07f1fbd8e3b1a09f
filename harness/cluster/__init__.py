"""The seam between PS ranks and those that call them: ranks in this process, or in others behind torch RPC."""
