"""The one seam between where rows live and who asks for them: in this process, or behind torch RPC."""
