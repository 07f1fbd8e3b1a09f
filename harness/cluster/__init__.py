"""PS ranks and the calls to them: in this process (``local``), or in other processes over torch RPC (``rpc``)."""
